//! What is known of a run at this moment: a fold over its events.

use belljar::capture::Tail;
use belljar::event::{Event, EventKind};
use belljar::moment::{Millis, Moment};
use belljar::outcome::StageOutcome;
use belljar::record::{CommandRecord, ImageRecord, LockRecord, LockState};
use belljar::stage::Stage;
use owo_colors::OwoColorize;

use crate::guest;
use crate::network::{self, Traffic};
use crate::screen::line::{Line, Mark};
use crate::verdict::ADVICE;
use crate::voice::Detail;
use crate::words;

/// How many lines of a guest's output are shown.
const TAIL: usize = 5;

/// The run as a viewer sees it.
#[derive(Debug)]
pub(crate) struct Scene {
    detail: Detail,
    activity: Activity,
    tail: Tail,
}

/// What goes on right now.
#[derive(Debug, Clone)]
struct Activity {
    name: String,
    since: Moment,
    script: Option<String>,
    commands: usize,
    last: Option<CommandRecord>,
    traffic: Traffic,
}

impl Activity {
    fn new(name: &str, since: Moment) -> Activity {
        Activity {
            name: name.to_owned(),
            since,
            script: None,
            commands: 0,
            last: None,
            traffic: Traffic::default(),
        }
    }
}

impl Scene {
    /// A scene that begins with work of this name.
    pub(crate) fn new(work: &str, detail: Detail) -> Scene {
        Scene { detail, activity: Activity::new(work, Moment::now()), tail: Tail::new(TAIL) }
    }

    /// Takes in an event; gives the lines that stay on the screen.
    pub(crate) fn take(&mut self, event: &Event) -> Vec<Staying> {
        match &event.kind {
            EventKind::RunStarted { run_id, task_id, .. } => vec![self.started(task_id, run_id, event.at)],
            EventKind::StageStarted { stage } => self.stage_started(*stage, event.at),
            EventKind::CommandStarted { script, .. } => self.command_started(script),
            EventKind::CommandFinished { command, .. } => self.command_finished(command),
            EventKind::Network { detail, .. } => self.network(detail),
            EventKind::StageFinished { stage, outcome, duration_ms } => {
                vec![Staying::Line(self.finished(*stage, *outcome, *duration_ms))]
            }
            EventKind::Warning { code, .. } if code == ADVICE => Vec::new(),
            EventKind::Warning { message, .. } => {
                vec![Staying::Text(format!("  {} {}", "! warning:".yellow(), guest::line(message)))]
            }
            EventKind::Notice { message } => self.aside(format!("notice: {message}")),
            EventKind::Enforced { controls } => {
                self.aside(format!("{} probed before any code runs", words::count(controls.len(), "control")))
            }
            EventKind::EngineReady { engine } => {
                self.aside(format!("engine {} {}", engine.name, engine.version))
            }
            EventKind::Collected { file } => {
                self.aside(format!("kept {} ({})", file.path, words::size(file.bytes)))
            }
            EventKind::TreeHashed { tree } => {
                self.aside(format!("tree {} in {} files", tree.digest, tree.files))
            }
            EventKind::ImageResolved { image } => self.image(image),
            // Room between what happened and what it means.
            EventKind::RunFinished { .. } => vec![Staying::Text(String::new())],
            EventKind::Failed { .. } | EventKind::CleanedUp { .. } => Vec::new(),
        }
    }

    /// Says more about what goes on right now.
    pub(crate) fn note(&mut self, words: String) {
        self.activity.script = Some(words);
    }

    /// Takes in output of the guest.
    pub(crate) fn output(&mut self, piece: &[u8]) {
        self.tail.push(piece);
    }

    fn started(&mut self, task: &str, run: &str, at: Moment) -> Staying {
        self.activity = Activity::new("begin", at);
        Staying::Text(format!(
            "{}  {}",
            guest::line(task).bold(),
            format!("run {}", guest::line(run)).dimmed()
        ))
    }

    fn stage_started(&mut self, stage: Stage, at: Moment) -> Vec<Staying> {
        self.activity = Activity::new(&words::stage(stage), at);
        self.tail = Tail::new(TAIL);
        Vec::new()
    }

    fn command_started(&mut self, script: &str) -> Vec<Staying> {
        let script = guest::line(script);
        self.activity.commands += 1;
        self.activity.script = Some(script.clone());
        vec![Staying::Step(format!("    {} $ {script}", self.activity.name))]
    }

    fn command_finished(&mut self, command: &CommandRecord) -> Vec<Staying> {
        self.activity.last = Some(command.clone());
        Vec::new()
    }

    fn network(&mut self, detail: &serde_json::Value) -> Vec<Staying> {
        self.activity.traffic.take(detail);
        self.aside(network::line(detail))
    }

    /// What the lock did is told to everybody, what was found to those who asked.
    fn image(&self, image: &ImageRecord) -> Vec<Staying> {
        let changes = |lock: &&LockRecord| matches!(lock.state, LockState::Pinned | LockState::Updated);
        match image.lock.as_ref().filter(changes).and_then(words::lock) {
            Some(words) => vec![Staying::Text(format!("    {}", guest::line(&words)))],
            None => self.aside(format!("image {} ({})", image.reference, image.kind)),
        }
    }

    /// A line for those who asked for more.
    fn aside(&self, words: String) -> Vec<Staying> {
        match self.detail {
            Detail::Brief => Vec::new(),
            Detail::Full => vec![Staying::Text(format!("      {}", guest::line(&words).dimmed()))],
        }
    }

    fn finished(&mut self, stage: Stage, outcome: StageOutcome, took: Millis) -> Line {
        let activity = std::mem::replace(&mut self.activity, Activity::new("end", Moment::now()));
        self.tail = Tail::new(TAIL);
        let ended = activity.last.as_ref().filter(|_| outcome == StageOutcome::Failed).map(words::ending);
        Line {
            mark: mark(stage, outcome),
            name: words::stage(stage),
            word: ended.unwrap_or_else(|| outcome.to_string()),
            time: words::span(took),
            note: activity.note(outcome),
        }
    }

    /// The lines that are redrawn until the stage ends.
    pub(crate) fn block(&self, frame: usize, width: usize) -> Vec<String> {
        let activity = &self.activity;
        let word =
            if activity.commands > 1 { format!("command {}", activity.commands) } else { String::new() };
        let line = Line {
            mark: Mark::Busy(frame),
            name: activity.name.clone(),
            word,
            time: words::span(self.elapsed()),
            note: activity.script.clone().unwrap_or_default(),
        };
        let traffic = activity.traffic.words();
        let network = (!traffic.is_empty()).then(|| format!("    network: {traffic}").dimmed().to_string());
        let tail = self.tail.lines().into_iter().map(|line| quoted(&line, width));
        std::iter::once(line.shown(Some(width))).chain(network).chain(tail).collect()
    }

    /// How long the present activity has taken.
    pub(crate) fn elapsed(&self) -> Millis {
        Moment::now().since(self.activity.since).into()
    }

    /// The name of the present activity.
    pub(crate) fn activity(&self) -> &str {
        &self.activity.name
    }
}

/// Something that stays on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Staying {
    /// A line in columns.
    Line(Line),
    /// Words.
    Text(String),
    /// The beginning of something, of use only where nothing moves.
    Step(String),
}

impl Activity {
    fn note(&self, outcome: StageOutcome) -> String {
        let traffic = self.traffic.words();
        let commands = match (self.commands, &self.script) {
            (0, _) | (_, None) => String::new(),
            (many, Some(_)) if many > 1 && outcome == StageOutcome::Ok => words::count(many, "command"),
            (_, Some(script)) => script.clone(),
        };
        [commands, traffic].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" · ")
    }
}

/// A failing run stage may be what the task expects, so it is not marked as bad before the verdict.
fn mark(stage: Stage, outcome: StageOutcome) -> Mark {
    match (stage, outcome) {
        (Stage::Run, StageOutcome::Failed) => Mark::Plain,
        _ => Mark::from(outcome),
    }
}

/// A guest's line behind a bar, so that it is never taken for one of ours.
pub(crate) fn quoted(line: &str, width: usize) -> String {
    let text = crate::screen::line::cut(&guest::line(line), width.saturating_sub(7));
    format!("    {} {text}", "│".dimmed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stays on the screen when an image is there and the lock was used like this.
    fn told(state: LockState) -> Vec<Staying> {
        let lock = LockRecord {
            path: "../belljar.lock".to_owned(),
            digest: None,
            reference: Some("team/app:1".to_owned()),
            platform: "linux/amd64".to_owned(),
            state,
        };
        let image = ImageRecord {
            reference: "team/app:1".to_owned(),
            kind: "oci".to_owned(),
            identity: Default::default(),
            locators: Default::default(),
            pinned: true,
            lock: Some(lock),
        };
        let (at, elapsed_ms) = (Moment::now(), std::time::Duration::ZERO.into());
        let event = Event { seq: 0, at, elapsed_ms, kind: EventKind::ImageResolved { image } };
        Scene::new("begin", Detail::Brief).take(&event)
    }

    #[test]
    fn a_change_of_the_lock_is_told_to_everybody() {
        let line = |words: &str| vec![Staying::Text(format!("    {words} in ../belljar.lock"))];
        assert_eq!(told(LockState::Pinned), line("pinned team/app:1 for linux/amd64"));
        assert_eq!(told(LockState::Updated), line("pinned team/app:1 for linux/amd64 anew"));
        assert_eq!(told(LockState::Verified), []);
        assert_eq!(told(LockState::Unpinned), []);
    }
}
