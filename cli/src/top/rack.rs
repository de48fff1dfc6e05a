//! `farmem top --rack`: shows the state of a rack's controller, and refreshes it.

use std::io;
use std::time::{Duration, Instant};

use farmem_control::client::{AskError, Client};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;

use super::Options;
use crate::failure::Failure;
use crate::rack::{orders, table};

/// Shows the rack until the user has seen enough.
pub fn run(options: &Options, interval: Duration) -> Result<(), Failure> {
    let client = orders::controller(&options.controller, &options.token)?;
    if options.json || options.once {
        let rack = client.rack().map_err(Failure::no_node)?;
        let json = || serde_json::to_string_pretty(&rack).map(|json| json + "\n").unwrap_or_default();
        print!("{}", if options.json { json() } else { table::screen(&rack) });
        return Ok(());
    }
    watch(&client, interval).map_err(|e| Failure {
        status: 1,
        line: format!("no terminal to draw on ({e}): farmem top --rack --once prints one sample"),
    })
}

/// Draws until the user quits. A controller that is away for a while is said, and what it said last
/// stays.
fn watch(client: &Client, interval: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut last = String::new();
    let ended = loop {
        let head = match client.rack() {
            Ok(rack) => {
                last = table::screen(&rack);
                format!(" farmem top --rack   {}   q quit", client.address())
            }
            Err(e) => away(&e),
        };
        let text = format!("{head}\n\n{last}");
        if let Err(e) = terminal.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area())) {
            break Err(e);
        }
        match quits_before(Instant::now() + interval) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    ratatui::try_restore()?;
    ended
}

fn away(e: &AskError) -> String {
    format!(" {e}; what follows is old   q quit")
}

/// Whether the user quits before it is time for the next look.
fn quits_before(then: Instant) -> io::Result<bool> {
    while let Some(left) = then.checked_duration_since(Instant::now()) {
        if !event::poll(left)? {
            break;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(true),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
                _ => {}
            },
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}
