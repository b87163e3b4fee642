//! A run as it goes on: moving on a terminal, line by line anywhere else. All of it is talk, so stderr.

pub(crate) mod canvas;
pub(crate) mod line;
pub(crate) mod scene;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use belljar::event::Event;
use belljar::run::ImageTeller;

use crate::arrival::Parts;
use crate::environment::TERM;
use crate::screen::canvas::Canvas;
use crate::screen::scene::{Scene, Staying};
use crate::voice::{Voice, talk};
use crate::words;

/// How often the moving part moves.
const BEAT: Duration = Duration::from_millis(100);
/// After how many seconds a line says that something still goes on, where nothing moves.
const REMINDERS: [u64; 4] = [1, 10, 60, 300];

/// The display of one run; ends when it is closed.
#[derive(Debug)]
pub(crate) struct Screen {
    view: View,
    beating: Option<(Sender<()>, JoinHandle<()>)>,
}

/// A handle for those who tell the screen what happens.
#[derive(Debug, Clone)]
pub(crate) struct View(Arc<Mutex<Show>>);

#[derive(Debug)]
struct Show {
    scene: Scene,
    face: Face,
}

/// Where it is shown.
#[derive(Debug)]
enum Face {
    /// A terminal that can move its cursor.
    Moving { canvas: Canvas, frame: usize },
    /// Anything else; how many reminders the present activity has had.
    Lines { reminded: usize },
}

impl Screen {
    /// Opens the display of a run, which begins with its plan.
    pub(crate) fn open(voice: Voice) -> Screen {
        Screen::open_for("plan", voice)
    }

    /// Opens the display for something that begins with work of this name.
    pub(crate) fn open_for(work: &str, voice: Voice) -> Screen {
        let face = if can_move() {
            Face::Moving { canvas: Canvas::new(), frame: 0 }
        } else {
            Face::Lines { reminded: 0 }
        };
        let view = View(Arc::new(Mutex::new(Show { scene: Scene::new(work, voice.detail), face })));
        Screen { beating: beat(view.clone()), view }
    }

    /// A handle for an observer.
    pub(crate) fn view(&self) -> View {
        self.view.clone()
    }

    /// Ends the display: what moved is gone, what stays is complete.
    pub(crate) fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some((sender, thread)) = self.beating.take() else { return };
        drop(sender);
        // A display that broke has nothing left to show.
        let _ = thread.join();
        self.view.show().clear();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread that moves the display until its other end is dropped.
fn beat(view: View) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (sender, receiver) = mpsc::channel();
    let beating = move || {
        while receiver.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
            view.show().beat();
        }
    };
    // Without the thread the display only moves with the events.
    thread::Builder::new().name("screen".to_owned()).spawn(beating).ok().map(|thread| (sender, thread))
}

/// Whether stderr is a terminal that can move its cursor.
pub(crate) fn can_move() -> bool {
    io::stderr().is_terminal() && TERM.value().is_some_and(|term| term != "dumb")
}

impl View {
    /// Takes in an event.
    pub(crate) fn event(&self, event: &Event) {
        self.show().event(event);
    }

    /// Takes in output of the guest.
    pub(crate) fn output(&self, piece: &[u8]) {
        self.show().scene.output(piece);
    }

    /// Who tells how an image comes.
    pub(crate) fn image_teller(&self) -> ImageTeller {
        let (view, parts) = (self.clone(), Mutex::new(Parts::default()));
        Arc::new(move |told| {
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.take(&told);
            view.show().scene.note(parts.summary());
        })
    }

    /// Says something of our own.
    pub(crate) fn say(&self, words: &str) {
        self.show().stay(vec![Staying::Text(words.to_owned())]);
    }

    fn show(&self) -> MutexGuard<'_, Show> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Show {
    fn event(&mut self, event: &Event) {
        let before = self.scene.activity().to_owned();
        let staying = self.scene.take(event);
        if let Face::Lines { reminded } = &mut self.face
            && self.scene.activity() != before
        {
            *reminded = 0;
        }
        self.stay(staying);
    }

    fn stay(&mut self, staying: Vec<Staying>) {
        match &mut self.face {
            Face::Moving { canvas, frame } => {
                let width = canvas.width();
                let lines: Vec<String> = staying.into_iter().filter_map(|line| moving(line, width)).collect();
                if !lines.is_empty() {
                    canvas.paint(&lines, &self.scene.block(*frame, width));
                }
            }
            Face::Lines { .. } => staying.into_iter().for_each(|line| talk(&still(line))),
        }
    }

    fn beat(&mut self) {
        match &mut self.face {
            Face::Moving { canvas, frame } => {
                *frame += 1;
                let width = canvas.width();
                canvas.paint(&[], &self.scene.block(*frame, width));
            }
            Face::Lines { reminded } => remind(&self.scene, reminded),
        }
    }

    fn clear(&mut self) {
        if let Face::Moving { canvas, .. } = &mut self.face {
            canvas.paint(&[], &[]);
        }
    }
}

fn moving(staying: Staying, width: usize) -> Option<String> {
    match staying {
        Staying::Line(line) => Some(line.shown(Some(width))),
        Staying::Text(text) => Some(text),
        Staying::Step(_) => None,
    }
}

fn still(staying: Staying) -> String {
    match staying {
        Staying::Line(line) => line.shown(None),
        Staying::Text(text) | Staying::Step(text) => text,
    }
}

fn remind(scene: &Scene, reminded: &mut usize) {
    let elapsed = scene.elapsed().as_micros() / 1_000_000;
    let last = REMINDERS[REMINDERS.len() - 1];
    let due = REMINDERS.iter().filter(|after| elapsed >= **after).count()
        + usize::try_from(elapsed / last).unwrap_or(0);
    if due > *reminded {
        *reminded = due;
        talk(&format!("    {} … {} so far", scene.activity(), words::seconds(elapsed)));
    }
}
