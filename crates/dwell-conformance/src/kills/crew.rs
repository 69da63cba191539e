//! The workers, as the orchestrator sees them.

use super::{
    load::Dice,
    worker::{Name, Order, Role, directory},
};
use crate::Namespace;
use dwell_core::{BoxError, Clock};
use std::{
    fs::{self, File},
    process::{Child, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

/// Number of workers of each role.
const PRODUCERS: usize = 2;
const CONSUMERS: usize = 3;
const PROMOTERS: usize = 2;
/// Time within which a worker must stop when requested.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Crew {
    namespace: Namespace,
    seed: u64,
    clock: Arc<dyn Clock>,
    seats: Vec<Seat>,
    /// Unexpected ends of workers that were not killed.
    pub(super) problems: Vec<String>,
}

/// A slot for one worker at a time.
struct Seat {
    name: Name,
    child: Option<Child>,
}

impl Crew {
    pub(super) fn new(
        namespace: Namespace,
        seed: u64,
        clock: Arc<dyn Clock>,
        cancels: bool,
        promotes: bool,
    ) -> Self {
        let crew = [
            (Role::Producer, PRODUCERS),
            (Role::Consumer, CONSUMERS),
            (Role::Canceller, cancels.into()),
            (Role::Promoter, if promotes { PROMOTERS } else { 0 }),
        ];
        let seats = crew.into_iter().flat_map(|(role, count)| {
            (0..count).map(move |slot| Seat { name: Name { role, slot, incarnation: 0 }, child: None })
        });
        Self { namespace, seed, clock, seats: seats.collect(), problems: vec![] }
    }

    /// Starts a worker in every empty slot, and returns the names of the new workers.
    pub(super) fn start(&mut self) -> Result<Vec<Name>, BoxError> {
        let directory = directory(&self.namespace);
        let mut came = vec![];
        for seat in self.seats.iter_mut().filter(|seat| seat.child.is_none()) {
            seat.name.incarnation += 1;
            let order = Order { name: seat.name.clone(), namespace: self.namespace.clone(), seed: self.seed };
            let log = File::create(seat.name.log(&directory))?;
            let mut command = order.command()?;
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
            seat.child = Some(command.spawn()?);
            came.push(seat.name.clone());
        }
        Ok(came)
    }

    /// Kills one running worker without a shutdown, preferably one that holds deliveries.
    pub(super) fn kill(&mut self, dice: &Dice) -> Result<Option<Name>, BoxError> {
        self.note_ends()?;
        let role = match dice.below(10) {
            0 => Role::Canceller,
            1 | 2 => Role::Producer,
            3 | 4 if self.seats.iter().any(|seat| seat.name.role == Role::Promoter) => Role::Promoter,
            _ => Role::Consumer,
        };
        let mut there: Vec<_> = self.seats.iter_mut().filter(|seat| seat.child.is_some()).collect();
        if there.iter().any(|seat| seat.name.role == role) {
            there.retain(|seat| seat.name.role == role);
        }
        if there.is_empty() {
            return Ok(None);
        }
        let index = dice.below(there.len() as u64) as usize;
        let seat = &mut there[index];
        if let Some(mut child) = seat.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(Some(seat.name.clone()))
    }

    /// Records workers that ended without being killed.
    fn note_ends(&mut self) -> Result<(), BoxError> {
        for seat in &mut self.seats {
            let Some(child) = &mut seat.child else { continue };
            if let Some(status) = child.try_wait()? {
                self.problems.push(ended(&seat.name, &self.namespace, status));
                seat.child = None;
            }
        }
        Ok(())
    }

    /// Stops all workers of a role, and waits for them.
    pub(super) async fn stop(&mut self, role: Role) -> Result<(), BoxError> {
        self.note_ends()?;
        for seat in self.seats.iter_mut().filter(|seat| seat.name.role == role) {
            // A worker stops at the end of its input.
            seat.child.iter_mut().for_each(|child| drop(child.stdin.take()));
        }
        for seat in self.seats.iter_mut().filter(|seat| seat.name.role == role) {
            let Some(mut child) = seat.child.take() else { continue };
            let asked = self.clock.elapsed();
            loop {
                if let Some(status) = child.try_wait()? {
                    if !status.success() {
                        self.problems.push(ended(&seat.name, &self.namespace, status));
                    }
                    break;
                }
                if self.clock.elapsed().saturating_sub(asked) > PATIENCE {
                    child.kill()?;
                    child.wait()?;
                    self.problems.push(format!("{} did not stop when requested", seat.name));
                    break;
                }
                self.clock.sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

fn ended(name: &Name, namespace: &Namespace, status: ExitStatus) -> String {
    let said = fs::read_to_string(name.log(&directory(namespace))).unwrap_or_default();
    let last: Vec<_> = said.lines().rev().take(5).collect();
    let last: Vec<_> = last.into_iter().rev().collect();
    format!("{name} ended unexpectedly ({status}): {}", last.join(" / "))
}

/// Leaves no worker behind, however the run ends.
impl Drop for Crew {
    fn drop(&mut self) {
        for child in self.seats.iter_mut().filter_map(|seat| seat.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
