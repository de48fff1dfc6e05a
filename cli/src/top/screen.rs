//! The live view: tables of runs, nodes, agents, swap and stores, and the chosen run's history.
//!
//! Sixteen colours, no mouse, no box characters beyond what every font has, one
//! redraw a sample: it is made to be used over ssh.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Sparkline, Table};

use super::gather::{Gatherer, Run, View};
use super::table::{
    self, AGENT_COLUMNS, NODE_COLUMNS, RUN_COLUMNS, STORE_COLUMNS, SWAP_COLUMNS, agent_cells, crowded, hint,
    node_cells, run_cells, store_cells, swap_cells, total_cells,
};
use crate::units;

/// Samples that a run's history keeps.
const HISTORY: usize = 240;

/// A column, and the figure by which runs are sorted in it, greatest first.
type Sort = (usize, fn(&Run) -> f64);

/// The columns by which runs can be sorted.
const SORTS: [Sort; 6] = [
    (5, |run| run.faults_per_s),
    (2, |run| run.local as f64),
    (4, |run| run.far as f64),
    (9, |run| run.in_per_s),
    (10, |run| run.out_per_s),
    (11, |run| run.waiting),
];

struct Screen {
    view: View,
    sort: usize,
    paused: bool,
    /// The help is shown, until a key is pressed.
    helps: bool,
    /// The chosen run, by name: it stays chosen when the order changes.
    chosen: Option<String>,
    /// By run: its last samples of faults a second.
    faults: HashMap<String, VecDeque<u64>>,
}

/// Draws until the user quits.
pub fn show(gatherer: &mut Gatherer, interval: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut screen = Screen::of(gatherer.look());
    let ended = loop {
        screen.arrange();
        if let Err(e) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(e);
        }
        let next_look = Instant::now() + interval;
        match screen.keys_until(next_look) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(e) => break Err(e),
        }
        if !screen.paused && Instant::now() >= next_look {
            screen.view = gatherer.look();
            screen.remember();
        }
    };
    ratatui::try_restore()?;
    ended
}

/// The help of `?`. At most 78 characters a line, and 20 lines.
const HELP: &str = " q, Esc      quit
 s           sort by the next column
 p, space    pause
 up, down    choose a run (also k and j)
 ?           this page; any key closes it

 local       what all of a run's processes have local; limit: what each may
 far         what lies at nodes
 faults/s    accesses that farmem served
 hits        of these, the share that waited for no node
 p50, p99    half of the fetches, 99 of 100, took at most so long
 in, out     from nodes, to nodes
 waiting     threads in faults: two that wait all the time are 200 %
 mapped      by programs of this machine, which read and write a node's
             memory in place: the node sees none of it, the runs' in and out do

 Much waiting: give the program more --local. farmem size -- PROGRAM runs it
 once and suggests how much.";

impl Screen {
    fn of(view: View) -> Screen {
        Screen { view, sort: 0, paused: false, helps: false, chosen: None, faults: HashMap::new() }
    }

    /// Takes keys until one changes the picture or it is time for the next look; `false` to end.
    fn keys_until(&mut self, then: Instant) -> io::Result<bool> {
        while let Some(left) = then.checked_duration_since(Instant::now()) {
            if !event::poll(left)? {
                break;
            }
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let helped = std::mem::take(&mut self.helps);
                    match key.code {
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(false),
                        _ if helped => {}
                        KeyCode::Char('?' | 'h') => self.helps = true,
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(false),
                        KeyCode::Char('s') => self.sort = (self.sort + 1) % SORTS.len(),
                        KeyCode::Char('p') | KeyCode::Char(' ') => self.paused = !self.paused,
                        KeyCode::Down | KeyCode::Char('j') => self.choose(1),
                        KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
                        _ => continue,
                    }
                    return Ok(true);
                }
                Event::Resize(..) => return Ok(true),
                _ => {}
            }
        }
        Ok(true)
    }

    fn arrange(&mut self) {
        let by = SORTS[self.sort].1;
        self.view.runs.sort_by(|a, b| by(b).total_cmp(&by(a)).then(a.supervisor.cmp(&b.supervisor)));
        if self.chosen_index().is_none() {
            self.chosen = self.view.runs.first().map(|run| run.run.clone());
        }
    }

    fn remember(&mut self) {
        let runs = &self.view.runs;
        self.faults.retain(|name, _| runs.iter().any(|run| run.run == *name));
        for run in runs {
            let history = self.faults.entry(run.run.clone()).or_default();
            history.push_back(run.faults_per_s as u64);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }

    fn chosen_index(&self) -> Option<usize> {
        self.view.runs.iter().position(|run| Some(&run.run) == self.chosen.as_ref())
    }

    fn choose(&mut self, step: isize) {
        let last = self.view.runs.len().saturating_sub(1);
        let index = self.chosen_index().unwrap_or(0).saturating_add_signed(step).min(last);
        self.chosen = self.view.runs.get(index).map(|run| run.run.clone());
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let rows = |of: usize, beside: u16| u16::try_from(of).unwrap_or(u16::MAX).saturating_add(beside);
        let some = |of: usize| if of == 0 { 0 } else { rows(of, 1) };
        let nodes = rows(self.view.nodes.len(), 2).min(area.height / 3);
        let agents = some(self.view.agents.len());
        let (stores, swaps) = (some(self.view.stores.len()), some(self.view.swaps.len()));
        let detail = if area.height >= 20 && !self.view.runs.is_empty() { 8 } else { 0 };
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(detail),
            Constraint::Length(nodes),
            Constraint::Length(agents.min(area.height / 4)),
            Constraint::Length(swaps.min(area.height / 4)),
            Constraint::Length(stores.min(area.height / 4)),
            Constraint::Length(1),
        ])
        .split(area);
        frame.render_widget(self.headline(), rows[0]);
        if self.helps {
            let rest = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
            frame.render_widget(Paragraph::new(HELP), rest);
            return;
        }
        self.draw_runs(frame, rows[1]);
        if detail > 0 {
            self.draw_detail(frame, rows[2]);
        }
        self.draw_nodes(frame, rows[3]);
        if agents > 0 {
            self.draw_agents(frame, rows[4]);
        }
        if swaps > 0 {
            self.draw_swaps(frame, rows[5]);
        }
        if stores > 0 {
            self.draw_stores(frame, rows[6]);
        }
        let keys =
            Line::from(" q quit   s sort   p pause   up/down choose   ? help").style(Style::new().fg(Color::DarkGray));
        frame.render_widget(keys, rows[7]);
    }

    fn headline(&self) -> Line<'_> {
        let faults: f64 = self.view.runs.iter().map(|run| run.faults_per_s).sum();
        let text = format!(
            " farmem top   {}, {}   {} faults/s ",
            units::number(self.view.runs.len(), "run", "runs"),
            units::number(self.view.nodes.len(), "node", "nodes"),
            units::count(faults as u64)
        );
        let mut spans = vec![Span::from(text).style(Style::new().add_modifier(Modifier::BOLD))];
        if self.paused {
            spans.push(Span::from(" paused ").style(Style::new().fg(Color::Black).bg(Color::Yellow)));
        }
        spans.extend(crowded(&self.view).map(|text| Span::from(format!(" {text}"))));
        Line::from(spans)
    }

    fn draw_runs(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.view.runs.is_empty() {
            frame.render_widget(Paragraph::new("\n no runs; start one with: farmem run --local 1G -- PROGRAM"), area);
            return;
        }
        let plan = Columns::fitting(area.width);
        let header = plan.row(RUN_COLUMNS.map(String::from), Some(SORTS[self.sort].0));
        // The chosen run stays in sight on a small terminal.
        let total = total_cells(&self.view.runs).filter(|_| area.height > 3);
        let room = area.height.saturating_sub(1 + u16::from(total.is_some())).max(1) as usize;
        let chosen = self.chosen_index().unwrap_or(0);
        let first = (chosen + 1).saturating_sub(room);
        let rows = self.view.runs.iter().enumerate().skip(first).take(room).map(|(index, run)| {
            let style = if index == chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            plan.row(run_cells(run, plan.program as usize), None).style(style)
        });
        let total = total.map(|cells| plan.row(cells, None).style(Style::new().add_modifier(Modifier::BOLD)));
        let table = Table::new(rows.chain(total), plan.widths()).column_spacing(1);
        frame.render_widget(table.header(header.style(Style::new().fg(Color::Cyan))), area);
    }

    fn draw_nodes(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.view.nodes.is_empty() {
            frame.render_widget(Line::from(" no nodes on this machine"), area);
            return;
        }
        let shown = node_columns(area.width);
        let widths = shown.iter().map(|&column| Constraint::Length(NODE_WIDTHS[column]));
        let widths = [Constraint::Min(16)].into_iter().chain(widths);
        let right = |cells: [String; 7]| {
            let first = Line::from(format!(" {}", cells[0]));
            let others = shown.iter().map(|&column| Line::from(cells[column].clone()).right_aligned());
            Row::new(std::iter::once(first).chain(others).collect::<Vec<Line<'static>>>())
        };
        let rows: Vec<Row<'_>> = self.view.nodes.iter().map(|node| right(node_cells(node, &self.view.runs))).collect();
        let header = right(NODE_COLUMNS.map(String::from)).style(Style::new().fg(Color::Cyan));
        frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
    }

    fn draw_agents(&self, frame: &mut Frame<'_>, area: Rect) {
        let widths = [10, 9, 10, 10].map(Constraint::Length).into_iter().chain([Constraint::Min(16)]);
        let row = |[pid, programs, held, taken, node]: [String; 5]| {
            let figures = [programs, held, taken].map(|cell| Line::from(cell).right_aligned());
            let ends = (Line::from(format!(" {pid}")), Line::from(format!(" {node}")));
            Row::new(std::iter::once(ends.0).chain(figures).chain([ends.1]))
        };
        let rows: Vec<Row<'_>> = self.view.agents.iter().map(|agent| row(agent_cells(agent))).collect();
        let header = row(AGENT_COLUMNS.map(String::from)).style(Style::new().fg(Color::Cyan));
        frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
    }

    fn draw_stores(&self, frame: &mut Frame<'_>, area: Rect) {
        let widths = [18, 8, 8, 11, 7, 6, 9].map(Constraint::Length).into_iter().chain([Constraint::Min(12)]);
        let row = |cells: [String; 8]| {
            let line = |(at, cell): (usize, String)| match at {
                0 | 7 => Line::from(format!(" {cell}")),
                _ => Line::from(cell).right_aligned(),
            };
            Row::new(cells.into_iter().enumerate().map(line).collect::<Vec<Line<'static>>>())
        };
        let rows: Vec<Row<'_>> = self.view.stores.iter().map(|store| row(store_cells(store))).collect();
        let header = row(STORE_COLUMNS.map(String::from)).style(Style::new().fg(Color::Cyan));
        frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
    }

    fn draw_swaps(&self, frame: &mut Frame<'_>, area: Rect) {
        let widths = [12, 8, 8, 8, 8, 8, 8, 8].map(Constraint::Length).into_iter().chain([Constraint::Min(12)]);
        let row = |cells: [String; 9]| {
            let line = |(at, cell): (usize, String)| match at {
                0 | 8 => Line::from(format!(" {cell}")),
                _ => Line::from(cell).right_aligned(),
            };
            Row::new(cells.into_iter().enumerate().map(line).collect::<Vec<Line<'static>>>())
        };
        let rows: Vec<Row<'_>> = self.view.swaps.iter().map(|swap| row(swap_cells(swap))).collect();
        let header = row(SWAP_COLUMNS.map(String::from)).style(Style::new().fg(Color::Cyan));
        frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
    }

    fn draw_detail(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(run) = self.chosen_index().map(|index| &self.view.runs[index]) else { return };
        let rows = Layout::vertical([Constraint::Length(4), Constraint::Min(2)]).split(area);
        let mode = if run.by_thread { "handler thread" } else { "inline" };
        let latency = &run.fetch_latency_ns;
        let lines = vec![
            Line::from(format!(" {}", run.program)).style(Style::new().add_modifier(Modifier::BOLD)),
            Line::from(format!(
                " for {}, {}, faults {mode}, nodes {}{}",
                units::nanos((run.age_s.max(0.0) * 1e9) as u64),
                units::number(run.processes, "process", "processes"),
                run.nodes,
                table::losses(run)
            )),
            Line::from(format!(
                " {} mapped; prefetch accuracy {}, coverage {}; fetches p50 {}  p90 {}  p99 {}  p99.9 {}",
                units::bytes(run.mapped),
                table::share(run.prefetch_accuracy),
                table::share(run.prefetch_coverage),
                units::nanos(latency.p50),
                units::nanos(latency.p90),
                units::nanos(latency.p99),
                units::nanos(latency.p999)
            )),
            match hint(run) {
                Some(hint) => Line::from(format!(" {hint}")).style(Style::new().fg(Color::Yellow)),
                None => Line::from(" faults/s").style(Style::new().fg(Color::DarkGray)),
            },
        ];
        frame.render_widget(Paragraph::new(lines), rows[0]);
        let history = self.faults.get(&run.run).map(|history| history.iter().copied().collect()).unwrap_or_default();
        let history: Vec<u64> = history;
        let newest = &history[history.len().saturating_sub(rows[1].width.saturating_sub(2) as usize)..];
        let inner = Rect { x: rows[1].x + 1, width: rows[1].width.saturating_sub(2), ..rows[1] };
        frame.render_widget(Sparkline::default().data(newest).style(Style::new().fg(Color::Green)), inner);
    }
}

/// The widths of [`NODE_COLUMNS`]. The first column gets the width that is left, 16 at least.
const NODE_WIDTHS: [u16; 7] = [16, 9, 10, 10, 8, 10, 10];

/// The columns of nodes, beside the first, that fit into a width. A cut figure would mislead.
fn node_columns(width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (1..NODE_WIDTHS.len()).collect();
    for dispensable in [1, 5, 6, 4, 3] {
        if NODE_WIDTHS[0] + shown.iter().map(|&column| NODE_WIDTHS[column] + 1).sum::<u16>() <= width {
            break;
        }
        shown.retain(|&column| column != dispensable);
    }
    shown
}

/// The columns of runs that fit into a width. The least telling ones are left out.
struct Columns {
    shown: Vec<usize>,
    program: u16,
}

impl Columns {
    const WIDTHS: [u16; 12] = [0, 8, 9, 9, 9, 9, 6, 9, 9, 9, 9, 8];
    /// The columns that may be left out, in the order in which they are.
    const DISPENSABLE: [usize; 9] = [3, 7, 11, 1, 10, 8, 9, 4, 6];

    fn fitting(width: u16) -> Columns {
        let mut shown: Vec<usize> = (1..Self::WIDTHS.len()).collect();
        let taken = |shown: &[usize]| shown.iter().map(|&column| Self::WIDTHS[column] + 1).sum::<u16>();
        for column in Self::DISPENSABLE {
            if taken(&shown) + 18 <= width {
                break;
            }
            shown.retain(|&c| c != column);
        }
        let program = width.saturating_sub(taken(&shown) + 1).max(8);
        shown.insert(0, 0);
        Columns { shown, program }
    }

    fn widths(&self) -> Vec<Constraint> {
        let width = |column: usize| if column == 0 { self.program + 1 } else { Self::WIDTHS[column] };
        self.shown.iter().map(|&column| Constraint::Length(width(column))).collect()
    }

    fn row(&self, cells: [String; 12], marked: Option<usize>) -> Row<'static> {
        let cell = |&column: &usize| {
            let text = &cells[column];
            match column {
                0 => Line::from(format!(" {text}")),
                _ if marked == Some(column) => Line::from(format!("{text}v")).right_aligned(),
                _ => Line::from(text.clone()).right_aligned(),
            }
        };
        Row::new(self.shown.iter().map(cell).collect::<Vec<Line<'static>>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Latency;
    use crate::node::Status;
    use crate::top::gather::Node;
    use ratatui::{Terminal, backend::TestBackend};

    fn run(supervisor: u32, program: &str, waiting: f64) -> Run {
        Run {
            run: format!("{supervisor:x}"),
            supervisor,
            processes: 1,
            program: program.to_owned(),
            nodes: "unix:/run/one.sock".into(),
            age_s: 65.0,
            local: 64 << 20,
            local_limit: 64 << 20,
            far: 300 << 20,
            single: 0,
            together: 0,
            repair_per_s: 0.0,
            repair_slowed: 0,
            nodes_lost: 0,
            mapped: 400 << 20,
            runtime: 1 << 20,
            faults_per_s: 120_000.0,
            hit_rate: Some(0.75),
            prefetch_accuracy: Some(0.9),
            prefetch_coverage: Some(0.5),
            in_per_s: f64::from(200 << 20),
            out_per_s: f64::from(50 << 20),
            waiting,
            fetch_latency_ns: Latency::of(&[0; 160]),
            by_thread: false,
        }
    }

    /// The picture of two runs and two nodes, one of which is mapped.
    fn picture(change: impl FnOnce(&mut Screen)) -> String {
        let node = |pid, listen: &str| Status {
            pid,
            began: None,
            listen: vec![listen.into()],
            metrics: None,
            lend: 1 << 30,
            held_back: 0,
            lent: 512 << 20,
            aside: 0,
            clients: 2,
            absent: 0,
            confined: None,
            draining: false,
            bytes_read: 0,
            bytes_written: 0,
        };
        let nodes = [node(7, "unix:/run/one.sock"), node(8, "127.0.0.1:7419")];
        let nodes = nodes.map(|status| Node { status, read_per_s: 0.0, written_per_s: 0.0 }).into();
        let runs = vec![run(100, "/usr/bin/sort -S 1G big.txt", 0.97), run(200, "redis-server", 0.2)];
        let mut screen = Screen::of(View { runs, nodes, ..View::default() });
        screen.arrange();
        change(&mut screen);
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let cells = terminal.backend().buffer().content();
        let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
        cells.chunks(120).map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
    }

    /// `snapshot.txt` is the picture, then the help. `FARMEM_SNAPSHOT=1` writes it again.
    #[test]
    fn the_picture_is_as_it_was() {
        let now = picture(|_| ()) + &picture(|screen| screen.helps = true);
        if std::env::var_os("FARMEM_SNAPSHOT").is_some() {
            let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshot.txt");
            std::fs::write(file, &now).unwrap();
        } else {
            assert_eq!(now, include_str!("snapshot.txt"), "\n{now}");
        }
    }

    #[test]
    fn a_hint_is_for_runs_that_wait_with_their_local_memory_full() {
        assert!(hint(&run(1, "a", 0.95)).is_some() && hint(&run(1, "a", 0.8)).is_none());
        assert!(hint(&Run { local: 1 << 20, ..run(1, "a", 0.95) }).is_none());
    }

    #[test]
    fn what_is_on_a_disk_is_said_beside_its_node() {
        let status =
            Status { listen: vec!["a:1".into()], lend: 1 << 30, lent: 2 << 26, aside: 1 << 26, ..Status::default() };
        let cells = node_cells(&Node { status, read_per_s: 0.0, written_per_s: 0.0 }, &[]);
        assert_eq!(&cells[0], "a:1 (64.0 MiB on disk)");
    }

    #[test]
    fn figures_of_nodes_are_whole_or_absent() {
        for width in 27..200 {
            let shown = node_columns(width);
            let taken: u16 = shown.iter().map(|&column| NODE_WIDTHS[column] + 1).sum();
            assert!(NODE_WIDTHS[0] + taken <= width && shown.contains(&2), "{width}");
        }
        assert_eq!(node_columns(80), [1, 2, 3, 4, 5, 6]);
        assert_eq!(node_columns(40), [2, 3]);
    }

    #[test]
    fn columns_fit_every_width() {
        for width in 0..200 {
            let plan = Columns::fitting(width);
            let taken: u16 = plan.shown.iter().skip(1).map(|&c| Columns::WIDTHS[c] + 1).sum();
            assert!(plan.shown.contains(&2) && plan.shown.contains(&5), "{width}: local and faults stay");
            assert!(width < 48 || taken + plan.program < width, "{width}");
        }
        assert_eq!(Columns::fitting(140).shown.len(), 12);
    }
}
