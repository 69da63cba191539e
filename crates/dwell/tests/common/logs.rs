//! What is logged, as fields.

use std::{cell::RefCell, collections::BTreeMap, fmt::Debug, sync::Once};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt};

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Line {
    pub level: Level,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

impl Line {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

thread_local! {
    static LINES: RefCell<Option<Vec<Line>>> = const { RefCell::new(None) };
}

/// From now on, what is logged on this thread is kept: in a `#[tokio::test]`, that is all that the bus logs.
pub fn capture() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Capture);
        tracing::subscriber::set_global_default(subscriber).expect("nobody else installs one");
    });
    LINES.set(Some(vec![]));
}

/// What was logged since, and not yet taken.
pub fn take() -> Vec<Line> {
    LINES.with_borrow_mut(|lines| lines.as_mut().map(std::mem::take).expect("`capture` comes first"))
}

struct Capture;

impl<S: Subscriber> Layer<S> for Capture {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        LINES.with_borrow_mut(|lines| {
            let Some(lines) = lines else { return };
            let mut line =
                Line { level: *event.metadata().level(), message: String::new(), fields: BTreeMap::new() };
            event.record(&mut line);
            lines.push(line);
        });
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message = value,
            name => drop(self.fields.insert(name.to_owned(), value)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}
