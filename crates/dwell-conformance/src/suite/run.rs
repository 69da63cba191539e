//! Running the cases: at once as far as they may, each on a rig of its own, none for ever.

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

/// Which cases to run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Only cases whose name, written `Group::name`, contains one of these; all if there is none.
    pub filters: Vec<String>,
    /// Filters and skips must be the whole name.
    pub exact: bool,
    /// Cases whose name contains one of these are reported as skipped.
    pub skip: Vec<String>,
    /// How many run at once; what [`Rig::at_once`] says if none.
    pub parallel: Option<usize>,
    /// A case that has not ended by then, in real time, hangs: it fails. One that restarts its server has twice as long.
    pub limit: Duration,
}

impl Default for Options {
    /// All cases, two minutes each.
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

    /// Cases that restart the broker disturb every other.
    fn runs_alone(&self) -> bool {
        self.needs.contains(&Need::Restart)
    }

    /// Cases that measure how soon a transport recovers run apart from those that use the processor.
    fn is_proxied(&self) -> bool {
        self.needs.contains(&Need::Proxy)
    }
}

/// Runs the suite on what `factory` makes, a rig for each case. `seen` hears of each result, in the
/// order of the matrix.
///
/// Cases run at once, up to [`Options::parallel`]; those that restart the broker come after them, and last those over a
/// proxy, see [`Rig::proxied_at_once`]. A panic is a failure, and so is a case that does not end in time.
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
        let fate = if options.matches(case, &options.skip) { Fate::Skip("left out by name") } else { fate };
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
                        // Names are cut short, so the row makes sure that no two cases share a topic.
                        let namespace = Namespace::new(&case.name, &format!("{run}-{row}"));
                        watch(Arc::new(factory()), case, fate, namespace, options.limit).await
                    }
                };
                let (transport, name) = (transport.clone(), case.name.clone());
                (row, CaseReport { transport, case: name, group: case.group, verdict, detail })
            }
        });
        // They end in any order and are reported in that of the matrix.
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

/// What decides which cases have a meaning. A broker that cannot be reached fails all of them.
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

/// Runs one case in a task of its own, and gives up on it after `limit`. One that restarts its server has twice as long,
/// since that may take half a minute each time, and its time begins when the server is there.
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
        // Real time, whatever the case's clock does.
        () = SystemClock::new().sleep(limit) => {
            task.abort();
            return (Verdict::Fail, format!("hangs: no end after {limit:?}"));
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
        Answer::Accepted => Err(failure(format!("{need:?} is declared absent, and was accepted"))),
    }
}

/// An error with its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("with something that is no text"))
}
