//! How an image comes: a line for each of its parts on a terminal, and next to nothing anywhere else.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar::images::{Told, Watch};
use belljar_image::digest::Digest;

use crate::screen::can_move;
use crate::screen::canvas::Canvas;
use crate::screen::line::{Mark, cut};
use crate::voice::{Detail, Voice, talk};
use crate::{guest, words};

/// How often the lines are redrawn.
const BEAT: Duration = Duration::from_millis(100);
/// How many digits of a digest people see.
const DIGITS: usize = 12;

/// Shows how an image comes.
pub(crate) struct Arrival {
    show: Mutex<Show>,
    /// Ctrl-C ends the process, and the store is made for that: nobody else asks to stop.
    cancel: AtomicBool,
}

struct Show {
    canvas: Option<Canvas>,
    detail: Detail,
    parts: Parts,
    drawn: Option<Instant>,
    frame: usize,
}

/// What is known of the parts of an image.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    title: String,
    blobs: Vec<(Digest, u64, u64)>,
    unpacking: Vec<Digest>,
}

impl Arrival {
    /// A display that has seen nothing yet.
    pub(crate) fn new(voice: Voice) -> Arrival {
        let (canvas, detail) = (can_move().then(Canvas::new), voice.detail);
        let show = Show { canvas, detail, parts: Parts::default(), drawn: None, frame: 0 };
        Arrival { show: Mutex::new(show), cancel: AtomicBool::new(false) }
    }

    /// Does something that takes its time, with the display around it.
    pub(crate) fn during<T>(voice: Voice, work: impl FnOnce(Watch<'_>) -> T) -> T {
        let arrival = Arrival::new(voice);
        let tell = |told: Told| arrival.show().take(&told);
        let done = work(Watch { cancel: &arrival.cancel, tell: &tell });
        arrival.show().clear();
        done
    }

    fn show(&self) -> MutexGuard<'_, Show> {
        self.show.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Show {
    fn take(&mut self, told: &Told) {
        self.parts.take(told);
        if let Some(words) = remark(told, self.detail) {
            self.say(words);
        }
        let due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= BEAT);
        if let Some(canvas) = self.canvas.as_mut().filter(|_| due) {
            self.frame += 1;
            canvas.paint(&[], &self.parts.lines(self.frame, canvas.width()));
            self.drawn = Some(Instant::now());
        }
    }

    fn say(&mut self, words: String) {
        match &mut self.canvas {
            Some(canvas) => canvas.paint(&[words], &self.parts.lines(self.frame, canvas.width())),
            None => talk(&words),
        }
    }

    fn clear(&mut self) {
        if let Some(canvas) = &mut self.canvas {
            canvas.paint(&[], &[]);
        }
    }
}

/// What is worth a line that stays.
fn remark(told: &Told, detail: Detail) -> Option<String> {
    match told {
        Told::Retry { reason, wait } => {
            let wait = words::span((*wait).into());
            Some(format!("  ! {}; trying again in {wait}", guest::line(reason)))
        }
        Told::NextHost { host, reason } => {
            Some(format!("  ! {} is left out: {}", guest::line(host), guest::line(reason)))
        }
        Told::Waiting(digest) => {
            Some(format!("  · another process makes {}: waiting for it", short(*digest)))
        }
        Told::Began(title) if detail == Detail::Full => Some(format!("  · {}", guest::line(title))),
        Told::There(digest) if detail == Detail::Full => Some(format!("  · {} is there", short(*digest))),
        Told::Unpacked(digest) if detail == Detail::Full => {
            Some(format!("  · {} is unpacked", short(*digest)))
        }
        Told::Began(_) | Told::There(_) | Told::Unpacked(_) | Told::Blob { .. } | Told::Unpacking(_) => None,
    }
}

/// A digest as people tell them apart.
pub(crate) fn short(digest: Digest) -> String {
    digest.hex().chars().take(DIGITS).collect()
}

impl Parts {
    /// Takes in what happened.
    pub(crate) fn take(&mut self, told: &Told) {
        match told {
            Told::Began(title) => self.title = guest::line(title),
            Told::Blob { digest, done, size } => {
                match self.blobs.iter_mut().find(|(known, ..)| known == digest) {
                    Some(blob) => blob.1 = *done,
                    None => self.blobs.push((*digest, *done, *size)),
                }
            }
            Told::Unpacking(digest) => self.unpacking.push(*digest),
            Told::Unpacked(digest) => self.unpacking.retain(|known| known != digest),
            Told::There(_) | Told::Waiting(_) | Told::Retry { .. } | Told::NextHost { .. } => {}
        }
    }

    /// All of it in one line.
    pub(crate) fn summary(&self) -> String {
        let (done, size) =
            self.blobs.iter().fold((0, 0), |(done, size), blob| (done + blob.1, size + blob.2));
        match (size, self.unpacking.len()) {
            (0, 0) => self.title.clone(),
            (_, 0) => format!("{}  {} of {}", self.title, words::size(done), words::size(size)),
            (_, count) => format!("{}  unpacking {}", self.title, words::count(count, "layer")),
        }
    }

    fn lines(&self, frame: usize, width: usize) -> Vec<String> {
        let mark = Mark::Busy(frame).shown();
        let mut lines = vec![format!("  {mark} {}", cut(&self.title, width.saturating_sub(4)))];
        for (digest, done, size) in &self.blobs {
            let (mark, part) = match done >= size {
                true => (Mark::Good.shown(), words::size(*size)),
                false => {
                    let percent = done.saturating_mul(100) / (*size).max(1);
                    (mark.clone(), format!("{} of {}  {percent} %", words::size(*done), words::size(*size)))
                }
            };
            lines.push(format!("    {mark} {}  {part}", short(*digest)));
        }
        lines.extend(self.unpacking.iter().map(|digest| format!("    {mark} {}  unpacking", short(*digest))));
        lines
    }
}
