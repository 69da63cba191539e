//! Handlers with outcomes drawn from the dice. The same run of the same message has the same
//! outcome in every repetition of a world.

use crate::{
    dice::Dice,
    life::Life,
    message::altered,
    plan::{Executor, Mood},
    scene::Scene,
    trace::{Ending, Event, Run, Subject},
};
use dwell_core::{Address, Clock, Due, Message};
use dwell_engine::{Context, SubscriptionSettings, Verdict, Work};
use std::{sync::Arc, time::Duration};

/// Maximum number of releases of a message, and of its runs, before its handler succeeds: every
/// world must come to an end.
const PATIENCE: u64 = 4;
const MOST_RUNS: u32 = 12;

/// Returns the handler for the messages of a subscription.
pub(crate) fn work(
    scene: &Arc<Scene>,
    life: &Arc<Life>,
    settings: &SubscriptionSettings,
    executor: Executor,
) -> Work {
    let shop = Shop { scene: scene.clone(), life: life.clone(), settings: settings.clone() };
    match executor {
        Executor::Proactor => Work::Async(Arc::new(move |message: Message, context: Context| {
            let begun = shop.begin(&message, context);
            async move {
                match begun {
                    Some(begun) => begun.run().await,
                    None => std::future::pending().await,
                }
            }
        })),
        Executor::Inline => Work::Inline(Arc::new(move |message: Message, context: Context| {
            // The outcome in a dead process has no effect.
            shop.begin(&message, context).map_or(Verdict::ACK, Begun::run_at_once)
        })),
    }
}

struct Shop {
    scene: Arc<Scene>,
    life: Arc<Life>,
    settings: SubscriptionSettings,
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Handled,
    Deferred,
    Failed,
    Panicked,
    Released,
    Rejected,
    Invalid,
    Unknown,
    Misconfigured,
    Hung,
}

impl Fate {
    fn draw(dice: &Dice, mood: &Mood) -> Self {
        dice.weighted(&[
            (mood.handled, Self::Handled),
            (mood.deferred, Self::Deferred),
            (mood.failed, Self::Failed),
            (mood.panicked, Self::Panicked),
            (mood.released, Self::Released),
            (mood.rejected, Self::Rejected),
            (mood.invalid, Self::Invalid),
            (mood.unknown, Self::Unknown),
            (mood.misconfigured, Self::Misconfigured),
            (mood.hung, Self::Hung),
        ])
    }
}

impl Shop {
    /// Starts a run. `None` if the process has just died and its task has not noticed yet.
    fn begin(&self, message: &Message, context: Context) -> Option<Begun> {
        if !self.life.is_alive() {
            return None;
        }
        let subject = Subject::of(message);
        let subscription =
            Address::subscription(context.place.topic.clone(), context.place.subscription.clone());
        let handled = message.attempts.handled;
        let number = self.scene.next_run();
        let name = format!("run {subject} {subscription} {handled}");
        let nth = self.scene.count(&name);
        let dice = self.scene.plan.dice.fork(&format!("{name} {nth}"));
        let mut fate = Fate::draw(&dice, &self.scene.plan.mood);
        let stubborn = matches!(fate, Fate::Released | Fate::Misconfigured) && nth >= PATIENCE
            || fate == Fate::Deferred && handled >= MOST_RUNS;
        if stubborn {
            fate = Fate::Handled;
        }
        self.scene.record(Event::Run(Box::new(Run {
            run: number,
            who: self.life.who,
            subscription,
            subject,
            attempts: message.attempts,
            lease: context.lease,
            deliveries: context.deliveries,
            altered: altered(message),
        })));
        let open = Open {
            scene: self.scene.clone(),
            life: self.life.clone(),
            run: number,
            since: self.scene.clock.elapsed(),
            timeout: self.settings.handler_timeout,
            ended: false,
        };
        Some(Begun { open, dice, fate, lease: self.settings.lease })
    }
}

/// Run that has started.
struct Begun {
    open: Open,
    dice: Dice,
    fate: Fate,
    lease: Duration,
}

impl Begun {
    async fn run(self) -> Verdict {
        self.crash_point().await;
        if self.dice.below(100) < u64::from(self.open.scene.plan.mood.slow) {
            let longest = self.lease.as_millis() as u64 * 2;
            self.open.scene.sleep(self.dice.millis(1, longest)).await;
        }
        if self.fate == Fate::Hung {
            return std::future::pending().await;
        }
        self.crash_point().await;
        self.finish()
    }

    fn run_at_once(mut self) -> Verdict {
        // A blocking handler cannot wait for virtual time, so it cannot hang.
        if self.fate == Fate::Hung {
            self.fate = Fate::Failed;
        }
        self.finish()
    }

    async fn crash_point(&self) {
        let scene = &self.open.scene;
        if scene.is_troubled() && self.dice.chance(scene.plan.rates.crash) {
            scene.crash(&self.open.life);
            std::future::pending::<()>().await;
        }
    }

    fn finish(mut self) -> Verdict {
        let due = match self.dice.below(4) {
            0 => None,
            1 => Some(Due::NOW),
            2 => Some(Due::After(self.dice.millis(1, 600_000))),
            _ => {
                let by = self.dice.millis(1, 600_000).as_millis() as i64;
                Some(Due::At(dwell_core::Timestamp(self.open.scene.clock.now().0 + by - 60_000)))
            }
        };
        let (ending, verdict) = match self.fate {
            Fate::Handled => (Ending::Handled, Verdict::ACK),
            Fate::Deferred => (Ending::Deferred(due), Verdict::Defer { due, reason: None }),
            Fate::Failed | Fate::Hung => (Ending::Failed, Verdict::fail("simulated: it failed")),
            Fate::Panicked => (Ending::Failed, Verdict::ACK),
            Fate::Released => (Ending::Released, Verdict::Release("simulated: not now".into())),
            Fate::Rejected => (Ending::Rejected, Verdict::Reject("simulated: never".into())),
            Fate::Invalid => (Ending::Invalid, Verdict::Invalid("simulated: unreadable".into())),
            Fate::Unknown => (Ending::Unknown, Verdict::Unknown),
            Fate::Misconfigured => {
                (Ending::Misconfigured, Verdict::Misconfigured("simulated: cannot work".into()))
            }
        };
        self.open.end(ending);
        if self.fate == Fate::Panicked {
            // Unlike `panic!`, this prints nothing.
            std::panic::resume_unwind(Box::new("simulated: it panicked"));
        }
        verdict
    }
}

/// Records the end of a run, even if it is dropped.
struct Open {
    scene: Arc<Scene>,
    life: Arc<Life>,
    run: usize,
    since: Duration,
    timeout: Duration,
    ended: bool,
}

impl Open {
    fn end(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.ended, true) {
            self.scene.record(Event::Ended(self.run, ending));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let overran = self.scene.clock.elapsed().saturating_sub(self.since) >= self.timeout;
        self.end(if overran && self.life.is_alive() { Ending::TimedOut } else { Ending::Interrupted });
    }
}
