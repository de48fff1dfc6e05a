//! Parts that farmem's tools and benchmarks share.
//!
//! | file | |
//! |---|---|
//! | [`supervise`], [`affinity`] | start, pin and end programs under measurement |
//! | [`alone`] | lets one measurement run at a time |
//! | [`environment`] | the machine on which figures were taken |
//! | [`pairs`], [`histogram`] | rounds and their ratios; distributions |
//! | [`report`], [`table`], [`chart`] | figures as text, JSON and SVG |
//! | [`usage`] | errors that other arguments would mend |

pub mod affinity;
pub mod alone;
pub mod chart;
pub mod environment;
pub mod histogram;
pub mod pairs;
pub mod report;
pub mod supervise;
pub mod table;
pub mod usage;
