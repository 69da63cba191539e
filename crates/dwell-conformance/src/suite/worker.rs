//! A worker that can be killed: another process of this test, if other processes can reach the
//! server.

use super::{Member, Stage, failure};
use crate::{Namespace, Rig};
use dwell_core::{BoxError, Delivery, MessageId, Subscription};
use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::Arc,
};

/// The argument that makes the test a worker.
const FLAG: &str = "--hold-deliveries";
/// Prefix of the line that lists the held deliveries.
const HOLDING: &str = "holding ";

/// Task of a worker: receive this number of deliveries, and hold them.
pub(super) struct Order {
    namespace: Namespace,
    topic: String,
    subscription: String,
    count: usize,
}

impl Order {
    pub(super) fn from_arguments(arguments: &[String]) -> Option<Self> {
        let [flag, namespace, topic, subscription, count] = arguments else { return None };
        (flag == FLAG).then_some(())?;
        Some(Self {
            namespace: namespace.parse().ok()?,
            topic: topic.clone(),
            subscription: subscription.clone(),
            count: count.parse().ok()?,
        })
    }
}

/// Runs the worker: holds its deliveries until it is killed, or until its parent process has ended.
pub(super) async fn work(rig: impl Rig, order: Order) -> ExitCode {
    let held = async {
        let stage = Stage::open(Arc::new(rig), order.namespace).await?;
        let subscription = stage.subscription(&order.topic, &order.subscription);
        let member = stage.join(&subscription).await?;
        let held = member.take_many(order.count).await?;
        Ok::<_, BoxError>((member, held))
    };
    let (_member, held) = match held.await {
        Ok(held) => held,
        Err(error) => {
            eprintln!("the worker failed: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ids: Vec<_> = held.iter().map(|delivery| delivery.message.id.to_string()).collect();
    println!("{HOLDING}{}", ids.join(" "));
    let _ = std::io::stdout().flush();
    // The input ends when the parent process ends.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
    ExitCode::FAILURE
}

/// A worker with deliveries, as the case sees it.
pub(super) enum Worker {
    Process {
        child: Child,
        _input: Option<ChildStdin>,
        held: Vec<MessageId>,
    },
    /// A client that is dropped without a shutdown, where no other process can reach the server.
    Client {
        _member: Member,
        held: Vec<Delivery>,
    },
}

impl Worker {
    /// Starts a worker that holds `count` deliveries of a subscription, given by its short names.
    pub(super) async fn start(
        stage: &Stage,
        topic: &str,
        name: &str,
        count: usize,
    ) -> Result<Self, BoxError> {
        if stage.rig().abilities().processes {
            return Self::start_process(stage, topic, name, count).await;
        }
        let subscription: Subscription = stage.subscription(topic, name);
        // Not registered with the stage, which would close it cleanly.
        let transport = stage.rig().connect(stage.namespace(), stage.rig().seams()).await?;
        let member = stage.join_on(&transport, &subscription).await?;
        let held = member.take_many(count).await?;
        Ok(Self::Client { _member: member, held })
    }

    async fn start_process(stage: &Stage, topic: &str, name: &str, count: usize) -> Result<Self, BoxError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([FLAG, &stage.namespace().to_string(), topic, name, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let line = tokio::task::spawn_blocking(move || {
            let lines =
                output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
            lines.into_iter().find_map(|line| line.strip_prefix(HOLDING).map(str::to_owned))
        });
        match line.await? {
            Some(ids) => {
                let held = ids.split_whitespace().map(MessageId::from).collect();
                Ok(Self::Process { child, _input: input, held })
            }
            None => {
                end(&mut child)?;
                Err(failure("the worker ended before it held its deliveries; see its output"))
            }
        }
    }

    /// Returns the ids of its deliveries.
    pub(super) fn held(&self) -> Vec<MessageId> {
        match self {
            Self::Process { held, .. } => held.clone(),
            Self::Client { held, .. } => held.iter().map(|delivery| delivery.message.id.clone()).collect(),
        }
    }

    /// Kills it without a shutdown.
    pub(super) fn kill(self) -> Result<(), BoxError> {
        match self {
            Self::Process { mut child, .. } => end(&mut child),
            Self::Client { .. } => Ok(()),
        }
    }
}

fn end(child: &mut Child) -> Result<(), BoxError> {
    child.kill()?;
    child.wait()?;
    Ok(())
}
