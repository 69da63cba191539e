//! Runs the cases: in parallel where possible, each on its own rig, and with a time limit.

use super::{
    Case, CaseReport, Report, Stage, Verdict,
    attempt::{Answer, attempt},
    cases, failure,
    need::{Facts, Fate, Need, fate},
};
use crate::{Namespace, Rig};
use dwell_core::{BoxError, Clock, Result, SystemClock};
use futures_util::{StreamExt, stream};
use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    error::Error as StdError,
    sync::Arc,
    time::Duration,
};

/// Selection of cases, and how they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Runs only cases whose name, written `Group::name`, contains one of these; all if empty.
    pub filters: Vec<String>,
    /// Whether filters and skips must be the whole name.
    pub exact: bool,
    /// Reports cases whose name contains one of these as skipped.
    pub skip: Vec<String>,
    /// Number of cases that run at once; [`Rig::at_once`] if `None`.
    pub parallel: Option<usize>,
    /// Time limit of a case, in real time. A case that exceeds it fails. Cases that restart their
    /// server have twice as long.
    pub limit: Duration,
}

impl Default for Options {
    /// Returns all cases, with two minutes each.
    fn default() -> Self {
        Self { filters: vec![], exact: false, skip: vec![], parallel: None, limit: Duration::from_secs(120) }
    }
}

impl Options {
    fn matches(&self, case: &Case, patterns: &[String]) -> bool {
        let (name, full) = (&case.name, case.full_name());
        patterns.iter().map(|pattern| pattern.replace('_', " ")).any(|pattern| {
            if self.exact { pattern == *name || pattern == full } else { full.contains(&pattern) }
        })
    }

    pub(super) fn selects(&self, case: &Case) -> bool {
        self.filters.is_empty() || self.matches(case, &self.filters)
    }
}

impl Case {
    pub(super) fn full_name(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }

    /// Cases that restart the broker disturb every other case.
    fn runs_alone(&self) -> bool {
        self.needs.contains(&Need::Restart)
    }

    /// Cases that measure the recovery time run separately from those that use the processor.
    fn is_proxied(&self) -> bool {
        self.needs.contains(&Need::Proxy)
    }
}

/// Runs the suite with a rig of `factory` for each case. `seen` receives each result, in the order
/// of the matrix.
///
/// Up to [`Options::parallel`] cases run at once, then those that restart the broker, and last
/// those over a proxy, see [`Rig::proxied_at_once`]. A panic is a failure, and so is a case that
/// exceeds its time limit.
pub async fn run_all<R: Rig>(
    factory: impl Fn() -> R,
    options: &Options,
    mut seen: impl FnMut(&CaseReport),
) -> Report {
    let all = cases();
    let rig: Arc<dyn Rig> = Arc::new(factory());
    let (transport, run) =
        (rig.name().to_owned(), rig.seams().incarnation.chars().take(8).collect::<String>());
    let (facts, (at_once, restarts_at_once)) = (facts(&rig, &run).await, rig.at_once());
    let proxied_at_once = rig.proxied_at_once();
    drop(rig);

    let mut report = Report::default();
    let (mut together, mut alone, mut proxied) = (vec![], vec![], vec![]);
    for (row, case) in all.iter().enumerate() {
        if !options.selects(case) {
            report.filtered_out += 1;
            continue;
        }
        let fate = match &facts {
            Ok(facts) => fate(case.needs, facts),
            Err(_) => Fate::Run,
        };
        if fate == Fate::NoCell {
            continue;
        }
        let fate = if options.matches(case, &options.skip) { Fate::Skip("excluded by name") } else { fate };
        let jobs = match (case.is_proxied(), case.runs_alone()) {
            (true, _) => &mut proxied,
            (false, true) => &mut alone,
            (false, false) => &mut together,
        };
        jobs.push((row, case, fate));
    }

    let at_once = options.parallel.unwrap_or(at_once);
    let batches = [(at_once, together), (restarts_at_once, alone), (proxied_at_once, proxied)];
    for (parallel, jobs) in batches {
        let parallel = parallel.min(at_once).max(1);
        let mut rows: VecDeque<_> = jobs.iter().map(|(row, ..)| *row).collect();
        let jobs = jobs.into_iter().map(|(row, case, fate)| {
            let (facts, factory, run, transport) = (&facts, &factory, &run, &transport);
            async move {
                let (verdict, detail) = match (facts, fate) {
                    (_, Fate::Skip(why)) => (Verdict::Skipped, why.to_owned()),
                    (Err(error), _) => (Verdict::Fail, error.clone()),
                    (Ok(_), fate) => {
                        // Names are truncated, so the row number ensures that no two cases share a
                        // topic.
                        let namespace = Namespace::new(&case.name, &format!("{run}-{row}"));
                        watch(Arc::new(factory()), case, fate, namespace, options.limit).await
                    }
                };
                let (transport, name) = (transport.clone(), case.name.clone());
                (row, CaseReport { transport, case: name, group: case.group, verdict, detail })
            }
        });
        // They end in any order, and are reported in the order of the matrix.
        let mut ended = BTreeMap::new();
        let mut results = stream::iter(jobs).buffer_unordered(parallel);
        while let Some((row, cell)) = results.next().await {
            ended.insert(row, cell);
            while let Some(cell) = rows.front().and_then(|row| ended.remove(row)) {
                rows.pop_front();
                seen(&cell);
                report.cases.push(cell);
            }
        }
    }
    report
}

/// Determines the facts that decide which cases apply. If the broker cannot be reached, all cases
/// fail.
async fn facts(rig: &Arc<dyn Rig>, run: &str) -> Result<Facts, String> {
    let stage = Stage::open(rig.clone(), Namespace::new("facts", run)).await;
    let stage = stage.map_err(|error| format!("no connection: {}", chain(&error)))?;
    let store = stage.store().await;
    let store = store.map_err(|error| format!("no connection to the store: {}", chain(&error)))?;
    let facts = Facts {
        capabilities: stage.capabilities(),
        store: store.map(|store| store.capabilities()),
        abilities: rig.abilities(),
        bad_urls: !rig.bad_urls().is_empty(),
        virtual_time: rig.time().virtual_clock().is_some(),
    };
    stage.close().await;
    Ok(facts)
}

/// Runs one case in a separate task, and aborts it after `limit`. A case that restarts its server
/// has twice as long, since each restart may take half a minute, and its time begins when the
/// server has started.
async fn watch(
    rig: Arc<dyn Rig>,
    case: &Case,
    fate: Fate,
    namespace: Namespace,
    limit: Duration,
) -> (Verdict, String) {
    let (body, alone) = (case.run, case.runs_alone());
    let limit = if alone { limit * 2 } else { limit };
    let mut proxies = vec![];
    if alone || case.is_proxied() {
        let (rig, is_proxied) = (rig.clone(), case.is_proxied());
        let isolated = tokio::spawn(async move {
            match is_proxied {
                true => rig.isolate_behind_proxies().await,
                false => rig.isolate().await.map(|()| vec![]),
            }
        });
        match isolated.await {
            Ok(Ok(isolated)) => proxies = isolated,
            Ok(Err(error)) => return (Verdict::Fail, format!("no server: {}", chain(&error))),
            Err(error) => return (Verdict::Fail, format!("no server: {}", chain(&error))),
        }
    }
    let mut task = tokio::spawn(async move {
        let stage = Stage::open_behind(proxies, rig, namespace).await?;
        let outcome = match fate {
            Fate::Refuse(need) => refusal(&stage, need).await,
            _ => body(stage.clone()).await.map(|()| (Verdict::Pass, stage.findings())),
        };
        stage.close().await;
        outcome
    });
    let ended = tokio::select! {
        biased;
        ended = &mut task => ended,
        // Real time, even if the case uses a virtual clock.
        () = SystemClock::new().sleep(limit) => {
            task.abort();
            return (Verdict::Fail, format!("hangs: not finished after {limit:?}"));
        }
    };
    match ended {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => (Verdict::Fail, chain(&*error)),
        Err(error) if error.is_panic() => (Verdict::Fail, panic_text(&*error.into_panic())),
        Err(error) => (Verdict::Fail, chain(&error)),
    }
}

async fn refusal(stage: &Stage, need: Need) -> Result<(Verdict, String), BoxError> {
    match attempt(stage, need).await? {
        Answer::Refused(text) => Ok((Verdict::Refused, text)),
        Answer::Accepted => Err(failure(format!("{need:?} is declared absent, but was accepted"))),
    }
}

/// Returns an error with its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("with a payload that is not text"))
}
