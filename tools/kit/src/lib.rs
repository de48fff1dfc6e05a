//! Parts that farmem's tools and benchmarks share.
//!
//! | file | |
//! |---|---|
//! | [`supervise`], [`affinity`], [`alone`] | programs under measurement: started, pinned, ended; one measurement at a time |
//! | [`environment`] | the machine that figures are of |
//! | [`pairs`], [`histogram`] | rounds and their ratios; distributions |
//! | [`report`], [`table`], [`chart`] | figures as text, JSON and SVG |

pub mod affinity;
pub mod alone;
pub mod chart;
pub mod environment;
pub mod histogram;
pub mod pairs;
pub mod report;
pub mod supervise;
pub mod table;
