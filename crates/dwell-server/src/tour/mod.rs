//! A tour of Dwell in the terminal, with real messages in the real engine.
//!
//! The [`guide`](guide::Guide) plays the [`scenes`] in a small [`shop`]. Its output has three
//! sources: reports of the handlers, the monitor, and the [`books`], which compare both with what
//! was sent.

mod books;
mod guide;
mod mark;
mod place;
mod report;
mod scenes;
mod screen;
mod shop;
mod summary;

use dwell_core::{Result, Seams};
use dwell_engine::Engine;
use guide::Guide;
use place::Place;
use report::Reporter;
use screen::{Look, Screen};
use shop::Shop;
use std::process::ExitCode;
use tokio::sync::mpsc;

/// Shows the tour. Fails if any message was early, lost, or otherwise not as promised.
pub(crate) async fn run(url: Option<String>) -> ExitCode {
    let place = Place::of(url);
    let mut guide = match open(&place).await {
        Ok(guide) => guide,
        Err(error) => {
            eprintln!("error: the tour cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    welcome(&guide.screen, &place);
    let played = scenes::play(&mut guide).await;

    let pumps = guide.engine.monitor().pumps();
    let totals = guide.books.totals();
    summary::table(&guide.screen, &pumps);
    let mut problems = summary::problems(&totals, &pumps);
    problems.extend(played.err());
    for problem in &problems {
        guide.screen.print(&format!("\n{}", guide.screen.paint(Look::Bad, &format!("problem: {problem}"))));
    }
    let is_good = problems.is_empty() && totals.early == 0 && totals.lost == 0;
    summary::verdict(&guide.screen, &totals, is_good);
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn open(place: &Place) -> Result<Guide> {
    let seams = Seams::system("tour");
    let clock = seams.clock.clone();
    let engine = Engine::builder(place.connect(&seams)?, seams).build().await?;
    let (to, told) = mpsc::unbounded_channel();
    let shop = Shop::open(&engine, Reporter { clock: clock.clone(), to }).await?;
    Ok(Guide::new(engine, shop, Screen::new(clock), told))
}

fn welcome(screen: &Screen, place: &Place) {
    screen.print(&format!("\n  {}  any message, any broker, any delay", screen.paint(Look::Title, "Dwell")));
    screen.print("         never early, never lost, always visible\n");
    let says = format!("A tour of a small shop on {}://, with real messages in real time.", place.scheme());
    screen.print(&format!("  {}\n", screen.paint(Look::Faint, &says)));
    screen.legend();
}
