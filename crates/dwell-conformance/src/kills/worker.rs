//! A worker: a separate process of this program that runs until it is killed or its input ends.

use super::{canceller, consumer, journal::Journal, load::Load, producer, watched::Watched};
use crate::{Namespace, Rig};
use dwell_core::{BoxError, Clock, MessageId, Result, Seams, Text};
use dwell_engine::{DelayMode, Engine};
use futures_util::FutureExt;
use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

/// The argument that makes the program a worker.
const FLAG: &str = "--work-until-killed";

/// How long a worker waits at its start for an unavailable server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Role of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Producer,
    Consumer,
    Canceller,
    /// Promotes due messages, where a separate process does that.
    Promoter,
}

impl Role {
    const ALL: [Self; 4] = [Self::Producer, Self::Consumer, Self::Canceller, Self::Promoter];

    fn word(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Canceller => "canceller",
            Self::Promoter => "promoter",
        }
    }
}

/// One incarnation of a worker. A new incarnation replaces a killed worker in its slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) role: Role,
    pub(super) slot: usize,
    pub(super) incarnation: usize,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.role.word(), self.slot, self.incarnation)
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (word, slot, incarnation) = (parts.next()?, parts.next()?, parts.next()?);
        let role = Role::ALL.into_iter().find(|role| role.word() == word)?;
        Some(Self { role, slot: slot.parse().ok()?, incarnation: incarnation.parse().ok()? })
    }

    pub(super) fn of_journal(path: &Path) -> Option<Self> {
        Self::parse(path.file_name()?.to_str()?.strip_suffix(".journal")?)
    }

    pub(super) fn journal(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{self}.journal"))
    }

    /// Path of the log with its error output.
    pub(super) fn log(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{self}.log"))
    }

    /// Whether this is an earlier incarnation in the same slot.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.role, self.slot) == (other.role, other.slot) && self.incarnation < other.incarnation
    }

    /// Id of the `number`th message that this incarnation sends.
    pub(super) fn message(&self, number: u64) -> MessageId {
        format!("p{}-{}-{number}", self.slot, self.incarnation).into()
    }
}

/// Directory of a run's journals, which are removed if there are no findings. A store that is a
/// file may be there as well.
pub fn directory(namespace: &Namespace) -> PathBuf {
    std::env::temp_dir().join("dwell-faults").join(namespace.to_string())
}

/// Arguments of a worker.
pub(super) struct Order {
    pub(super) name: Name,
    pub(super) namespace: Namespace,
    pub(super) seed: u64,
}

impl Order {
    pub(super) fn from_arguments(arguments: &[String]) -> Option<Self> {
        let [flag, name, namespace, seed] = arguments else { return None };
        (flag == FLAG).then_some(())?;
        Some(Self { name: Name::parse(name)?, namespace: namespace.parse().ok()?, seed: seed.parse().ok()? })
    }

    /// Command that starts this program with these arguments.
    pub(super) fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let Self { name, namespace, seed } = self;
        command.args([FLAG, &name.to_string(), &namespace.to_string(), &seed.to_string()]);
        Ok(command)
    }
}

/// A running worker.
pub(super) struct Post {
    pub(super) name: Name,
    pub(super) directory: PathBuf,
    pub(super) load: Load,
    pub(super) journal: Arc<Journal>,
    pub(super) engine: Engine,
    pub(super) seams: Seams,
}

impl Post {
    async fn open(rig: &dyn Rig, order: Order) -> Result<Self, BoxError> {
        let Order { name, namespace, seed } = order;
        let directory = directory(&namespace);
        let Seams { clock, random, .. } = rig.seams();
        let seams = Seams::new(clock, random, name.to_string());
        let journal = Arc::new(Journal::create(&name.journal(&directory), seams.clock.clone())?);
        let clock = &*seams.clock;
        let transport = patiently(clock, async || rig.connect(&namespace, seams.clone()).await).await?;
        let transport = Arc::new(Watched::new(transport, journal.clone(), seams.clock.clone()));
        let store = patiently(clock, async || rig.store(&namespace, seams.clone()).await).await?;
        let mode = if store.is_some() { DelayMode::Scheduler } else { DelayMode::Native };
        let build = async || {
            let builder = Engine::builder(transport.clone(), seams.clone())
                .via(Text::from(namespace.to_string()))
                .delay(mode)
                .allow_volatile(true);
            let builder = match &store {
                Some(store) => builder.store(store.clone()),
                None => builder,
            };
            builder.build().await
        };
        let engine = patiently(clock, build).await?;
        let load = Load::new(namespace, seed, rig.pace().lease);
        Ok(Self { name, directory, load, journal, engine, seams })
    }

    pub(super) async fn told_to_stop(&self) {
        told_to_stop().await;
    }
}

/// Ends with the input: the parent process requests a stop, or has ended.
async fn told_to_stop() {
    let read = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    let _ = read.await;
}

/// Retries while the server is unavailable, as a supervisor would restart a real worker.
pub(super) async fn patiently<T>(
    clock: &dyn Clock,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let start = clock.elapsed();
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() && clock.elapsed().saturating_sub(start) < PATIENCE => {
                clock.sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

async fn promote(rig: &dyn Rig, order: Order) -> Result<(), BoxError> {
    let Order { name, namespace, .. } = order;
    let Seams { clock, random, .. } = rig.seams();
    let seams = Seams::new(clock.clone(), random, name.to_string());
    let stop = told_to_stop().boxed().shared();
    let promote = async || rig.promote(&namespace, seams.clone(), Box::pin(stop.clone())).await;
    Ok(patiently(&*clock, promote).await?)
}

/// Runs a worker until it is stopped or killed.
pub(super) async fn work(rig: impl Rig, order: Order) -> ExitCode {
    let name = order.name.clone();
    let worked = async {
        if name.role == Role::Promoter {
            return promote(&rig, order).await;
        }
        let post = Post::open(&rig, order).await?;
        match post.name.role {
            Role::Promoter => {}
            Role::Producer => producer::work(&post).await?,
            Role::Consumer => consumer::work(&post).await?,
            Role::Canceller => canceller::work(&post).await?,
        }
        Ok::<_, BoxError>(post.engine.shutdown().await?)
    };
    match worked.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name} failed: {error}");
            ExitCode::FAILURE
        }
    }
}
