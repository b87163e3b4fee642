//! Processor time: its limit, and how much of it was used.

use std::time::Duration;

use crate::conformance::expectation::Used;
use crate::conformance::guest::{python, sh};
use crate::conformance::row::Promise::{AskedMeansEnforced, CannotForge};
use crate::conformance::row::{Row, engine, exits};

/// Uses the processor for so many seconds of the wall's clock.
fn busy(seconds: &str) -> String {
    format!("until = time.monotonic() + {seconds}\nwhile time.monotonic() < until: pass")
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    vec![
        engine("processor-share", AskedMeansEnforced, "a quarter of a processor is a quarter of the wall's time")
            .processor(250)
            .alone()
            .runs(python(busy("1.2")), exits(0).uses(Used::Processor(20, 520))),
        engine("processor-share-of-many", AskedMeansEnforced, "the share is that of all processes together")
            .processor(250)
            .alone()
            .runs(
                python(format!(
                    "children = []\nfor number in range(6):\n    pid = os.fork()\n    if pid == 0:\n        {}\n        os._exit(0)\n    \
                     children.append(pid)\nfor pid in children: os.waitpid(pid, 0)",
                    busy("1.2").replace('\n', "\n        ")
                )),
                exits(0).uses(Used::Processor(0, 520)),
            ),
        engine("processor-throttled", CannotForge, "how long a command was held back is told")
            .processor(250)
            .alone()
            .runs(python(busy("0.8")), exits(0).uses(Used::Throttled(100))),
        engine("processor-time-used", CannotForge, "processor time is told, and is that of the work")
            .alone()
            .runs(
                python("until = time.process_time() + 0.4\nwhile time.process_time() < until: pass"),
                exits(0).uses(Used::Processor(380, 900)),
            ),
        engine("processor-time-of-children", CannotForge, "processor time of children counts")
            .alone()
            .runs(
                python("apart(lambda: [None for until in [time.process_time() + 0.4] for _ in iter(lambda: time.process_time() < until, False)] and 0)"),
                exits(0).uses(Used::Processor(380, 900)),
            ),
        engine("processor-time-asleep", CannotForge, "a command that sleeps uses time on the wall and none of the processor")
            .alone()
            .runs(
                sh("sleep 0.5"),
                exits(0)
                    .lasts(Duration::from_millis(490), Duration::from_secs(5))
                    .uses(Used::Processor(0, 100)),
            ),
    ]
}
