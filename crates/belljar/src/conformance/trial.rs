//! One row on one engine, from the first folder to the last.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::conformance::archive::archive;
use crate::conformance::bench::{Bench, Place, Ran, Wish};
use crate::conformance::expectation::{Difference, Expectation, shown};
use crate::conformance::ground::Ground;
use crate::conformance::guest::Guest;
use crate::conformance::row::{Act, Carried, Check, Prop, Row};
use crate::engine::Stop;
use crate::fault::{Code, Fault};
use crate::spec::Isolation;

/// How long a neighbour may take to be there.
const NEIGHBOUR_PATIENCE: Duration = Duration::from_secs(20);

/// One row on one engine.
pub(super) struct Trial<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) row: &'a Row,
    pub(super) isolation: Isolation,
}

impl Trial<'_> {
    /// Runs the row; everything that is not as it must be.
    pub(super) fn differences(&self, ground: Ground) -> Vec<Difference> {
        let mut found = self.beside_neighbours(&ground).unwrap_or_else(|fault| vec![could_not_run(&fault)]);
        found.extend(ground.differences(self.row));
        found.extend(ground.clear());
        found
    }

    /// Asks for the row's sandbox, which must be refused with this code; gives the refusal's words.
    pub(super) fn refusal(&self, ground: Ground, code: Code) -> Result<String, Vec<Difference>> {
        let refused = self.place(&ground, Isolation::Full);
        let result = match refused {
            Err(fault) if fault.code == code => Ok(fault.message),
            Err(fault) => Err(vec![Difference::new("refusal", code.name(), told(&fault))]),
            Ok(place) => {
                let mut found = vec![Difference::new("refusal", code.name(), "the sandbox was made")];
                found.extend(taken_down(place));
                Err(found)
            }
        };
        match (ground.clear(), result) {
            (None, result) => result,
            (Some(difference), Ok(_)) => Err(vec![difference]),
            (Some(difference), Err(found)) => Err(found.into_iter().chain([difference]).collect()),
        }
    }

    /// Asks the row's sandbox for its first command, which must be refused with this code; gives the refusal's words.
    pub(super) fn refused_command(&self, ground: Ground, code: Code) -> Result<String, Vec<Difference>> {
        let result = self.ask_first(&ground, code);
        match (ground.clear(), result) {
            (None, result) => result,
            (Some(difference), Ok(_)) => Err(vec![difference]),
            (Some(difference), Err(found)) => Err(found.into_iter().chain([difference]).collect()),
        }
    }

    fn ask_first(&self, ground: &Ground, code: Code) -> Result<String, Vec<Difference>> {
        let mut place = self.place(ground, self.isolation).map_err(|fault| vec![could_not_run(&fault)])?;
        let first = self.row.acts.iter().find_map(|act| match act {
            Act::Run(guest, _) => Some(guest),
            _ => None,
        });
        let asked = first.map(|guest| place.run(guest, ground.environment(guest), &|| {}).err());
        let mut found = taken_down(place);
        let seen = match asked.flatten() {
            Some(fault) if fault.code == code => {
                return if found.is_empty() { Ok(fault.message) } else { Err(found) };
            }
            Some(fault) => told(&fault),
            None => "the command was run".to_owned(),
        };
        found.push(Difference::new("refusal", code.name(), seen));
        Err(found)
    }

    /// A row that is about a refusal of its sandbox.
    fn refused(&self, ground: &Ground, code: Code) -> Vec<Difference> {
        match self.place(ground, self.isolation) {
            Err(fault) if fault.code == code => Vec::new(),
            Err(fault) => vec![Difference::new("refusal", code.name(), told(&fault))],
            Ok(place) => {
                let found = Difference::new("refusal", code.name(), "the sandbox was made");
                taken_down(place).into_iter().chain([found]).collect()
            }
        }
    }

    fn place(&self, ground: &Ground, isolation: Isolation) -> Result<Place, Fault> {
        let (limits, disk, network) = (self.row.limits, self.row.disk, self.row.network);
        let (id, workspace) = (ground.mark(), ground.workspace());
        self.bench.place(&Wish { id, workspace: &workspace, limits, disk, isolation, network })
    }

    /// The acts, while every neighbour of the row lives.
    fn beside_neighbours(&self, ground: &Ground) -> Result<Vec<Difference>, Fault> {
        let neighbour = self.row.props.iter().find_map(|prop| match prop {
            Prop::Neighbour(guest) => Some(guest),
            _ => None,
        });
        let Some(guest) = neighbour else { return self.acts(ground) };
        let workspace = ground.neighbours_workspace();
        let id = format!("{}-neighbour", ground.mark());
        let wish = Wish {
            id: &id,
            workspace: &workspace,
            limits: self.row.limits,
            disk: None,
            isolation: self.isolation,
            network: self.row.network,
        };
        let mut place = self.bench.place(&wish)?;
        let stop = place.stopper();
        let (teller, told) = mpsc::channel();
        let (found, lived) = std::thread::scope(|scope| {
            let (place, mut environment) = (&mut place, ground.environment(guest));
            environment.insert("MARK".to_owned(), id.clone());
            scope.spawn(move || {
                // Whoever waits for it has given up when nobody listens.
                let _ = teller.send(place.run(guest, environment, &|| {}).map(|ran| ran.exit.ending));
            });
            let ready = wait_for(&workspace.join("ready"), &told);
            let found = if ready { self.acts(ground) } else { Ok(vec![absent()]) };
            let lived = told.try_recv().is_err();
            stop(Stop::Interrupted);
            (found, lived)
        });
        let mut found = found?;
        if !lived {
            found.push(Difference::new("the neighbour", "alive to the end", "it ended"));
        }
        found.extend(taken_down(place));
        found.extend(ground.left_running(&id));
        Ok(found)
    }

    fn acts(&self, ground: &Ground) -> Result<Vec<Difference>, Fault> {
        if let Some(code) = self.row.refused {
            return Ok(self.refused(ground, code));
        }
        let mut packed = Vec::new();
        let mut place = self.place(ground, self.isolation)?;
        let mut found = Vec::new();
        if self.row.checks.iter().any(|check| matches!(check, Check::Controls)) {
            found.extend(unenforced(&place));
        }
        for (index, act) in self.row.acts.iter().enumerate() {
            let done = match act {
                Act::Run(guest, expectation) => self.run(&mut place, ground, guest, expectation),
                Act::Denied(guest, code) => Ok(self.denied(&mut place, ground, guest, *code)),
                Act::Together(commands) => self.together(&place, ground, commands),
                Act::Put { path, entries, carried } => {
                    let archive = archive(entries, &|text| ground.own(text));
                    Ok(judged(place.put(path, &archive), *carried))
                }
                Act::Get { path, carried } => {
                    let got = place.get(path).map(|bytes| packed = bytes);
                    let leaks = ground.gives_away(&packed).then(|| leaked(&packed));
                    Ok(judged(got, *carried).into_iter().chain(leaks).collect())
                }
                Act::PutBack { path } => Ok(judged(place.put(path, &packed), Carried::Done)),
                Act::Disconnect => place.disconnect().map(|()| Vec::new()),
                Act::Anew => {
                    found.extend(taken_down(place));
                    place = self.place(ground, self.isolation)?;
                    Ok(Vec::new())
                }
            };
            let differences = done.unwrap_or_else(|fault| vec![could_not_run(&fault)]);
            found.extend(differences.into_iter().map(|difference| numbered(difference, index, self.row)));
        }
        found.extend(taken_down(place));
        found.extend(ground.left_running(ground.mark()));
        Ok(found)
    }

    fn run(
        &self,
        place: &mut Place,
        ground: &Ground,
        guest: &Guest,
        expectation: &Expectation,
    ) -> Result<Vec<Difference>, Fault> {
        let ran = place.run(guest, ground.environment(guest), &|| ground.collect_meanwhile(self.row))?;
        // At once, without patience: when the end is told, everything is gone already.
        let mut found: Vec<Difference> = ground.left_running(ground.mark()).into_iter().collect();
        found.extend(judge(&ran, ground, guest, expectation));
        Ok(found)
    }

    fn denied(&self, place: &mut Place, ground: &Ground, guest: &Guest, code: Code) -> Vec<Difference> {
        match place.run(guest, ground.environment(guest), &|| {}) {
            Err(fault) if fault.code == code => Vec::new(),
            Err(fault) => vec![Difference::new("refusal", code.name(), told(&fault))],
            Ok(_) => vec![Difference::new("refusal", code.name(), "the command was run")],
        }
    }

    /// Several commands at the same time, each over a connection of its own.
    fn together(
        &self,
        place: &Place,
        ground: &Ground,
        commands: &[(Guest, Expectation)],
    ) -> Result<Vec<Difference>, Fault> {
        let places = commands.iter().map(|_| place.another()).collect::<Result<Vec<_>, _>>()?;
        let one = |mut place: Place, (guest, expectation): &(Guest, Expectation)| match place.run(
            guest,
            ground.environment(guest),
            &|| ground.collect_meanwhile(self.row),
        ) {
            Ok(ran) => judge(&ran, ground, guest, expectation),
            Err(fault) => vec![could_not_run(&fault)],
        };
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let one = &one;
            let threads = places.into_iter().zip(commands);
            let threads: Vec<_> =
                threads.map(|(place, command)| scope.spawn(move || one(place, command))).collect();
            for (index, thread) in threads.into_iter().enumerate() {
                let differences = thread.join().unwrap_or_else(|_| vec![panicked()]);
                found.extend(differences.into_iter().map(|difference| of_command(difference, index)));
            }
        });
        found.extend(ground.left_running(ground.mark()));
        Ok(found)
    }
}

/// What came of a command beside what must hold of the machine.
fn judge(ran: &Ran, ground: &Ground, guest: &Guest, expectation: &Expectation) -> Vec<Difference> {
    let mut found = expectation.differences(ran, &|text| ground.own(text));
    found.extend(streams(ran, ground));
    if guest.meanwhile.path().is_some() && ran.got.is_empty() {
        found.push(Difference::new("archives got meanwhile", "one at least", "none"));
    }
    found.extend(ground.gives_away(&ran.got).then(|| leaked(&ran.got)));
    found
}

fn leaked(archive: &[u8]) -> Difference {
    Difference::new("an archive", "nothing of the host's secret", shown(archive))
}

/// Whether an archive was carried, or refused for what it is.
fn judged(result: Result<(), Fault>, carried: Carried) -> Vec<Difference> {
    let seen = match (result, carried) {
        (Ok(()), Carried::Done) => return Vec::new(),
        (Err(fault), Carried::Refused) if fault.code == Code::ArchiveRefused => return Vec::new(),
        (Ok(()), Carried::Refused) => "carried".to_owned(),
        (Err(fault), _) => told(&fault),
    };
    let expected = match carried {
        Carried::Done => "carried",
        Carried::Refused => Code::ArchiveRefused.name(),
    };
    vec![Difference::new("the archive", expected, seen)]
}

fn panicked() -> Difference {
    Difference::new("the suite", "runs it", "it panicked")
}

fn of_command(mut difference: Difference, index: usize) -> Difference {
    difference.what = format!("command {}: {}", index + 1, difference.what);
    difference
}

/// What no stream may do, whatever the row is about.
fn streams(ran: &Ran, ground: &Ground) -> Vec<Difference> {
    let mut found = Vec::new();
    for (name, stream) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        if stream.held_open {
            found.push(Difference::new(name, "closed at the end", "somebody holds it open"));
        }
        if ground.gives_away(&stream.bytes) {
            found.push(Difference::new(name, "nothing of the host's secret", shown(&stream.bytes)));
        }
    }
    found
}

fn wait_for<T>(sign: &std::path::Path, ended: &mpsc::Receiver<T>) -> bool {
    let deadline = Instant::now() + NEIGHBOUR_PATIENCE;
    while Instant::now() < deadline {
        if sign.exists() {
            return true;
        }
        if !matches!(ended.recv_timeout(Duration::from_millis(5)), Err(mpsc::RecvTimeoutError::Timeout)) {
            return false;
        }
    }
    false
}

fn absent() -> Difference {
    Difference::new("the neighbour", "ready", "it never was")
}

/// Controls that are not as they were asked for.
fn unenforced(place: &Place) -> Vec<Difference> {
    let holds = |control: &crate::record::ControlRecord| {
        control.enforced.as_ref().is_some_and(|enforced| enforced == "yes" || *enforced == control.requested)
    };
    let broken = place.controls.iter().filter(|control| !holds(control));
    broken
        .map(|control| {
            let seen = control.enforced.as_deref().unwrap_or("nothing");
            Difference::new(format!("control {}", control.control), control.requested.clone(), seen)
        })
        .collect()
}

fn taken_down(place: Place) -> Vec<Difference> {
    let left = place.destroy().unwrap_or_else(|fault| vec![told(&fault)]);
    left.into_iter().map(|what| Difference::new("taking the sandbox down", "nothing left", what)).collect()
}

fn could_not_run(fault: &Fault) -> Difference {
    Difference::new("the engine", "runs it", told(fault))
}

fn told(fault: &Fault) -> String {
    format!("{} [{}]", fault.message, fault.code)
}

/// A row of several acts says in which of them something was wrong.
fn numbered(mut difference: Difference, index: usize, row: &Row) -> Difference {
    if row.acts.len() > 1 {
        difference.what = format!("act {}: {}", index + 1, difference.what);
    }
    difference
}
