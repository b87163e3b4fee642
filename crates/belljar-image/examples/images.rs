//! The store through the library, measured: what `bench/images` compares with Docker.
//!
//! `images import STORE ARCHIVE` prints a line of JSON: the image, the folders of its layers, and how long it took.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a measurement fails by panicking"
)]

use std::path::Path;
use std::time::Instant;

use belljar_image::import::{self, Wanted};
use belljar_image::store::{Notice, Owners, Store};
use serde_json::json;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, store, archive] = arguments.as_slice() else { panic!("images import STORE ARCHIVE") };
    assert_eq!(verb, "import", "images import STORE ARCHIVE");
    let begun = Instant::now();
    let owners = if rustix::process::geteuid().is_root() { Owners::Exact } else { Owners::Refuse };
    let store = Store::open(Path::new(store), owners).unwrap();
    let quiet = |_: Notice| {};
    let image = import::import(&store, Path::new(archive), &Wanted::default(), &quiet).unwrap().image;
    let line = json!({
        "what": "import",
        "image": image.config_digest,
        "layers": image.layers,
        "seconds": begun.elapsed().as_secs_f64(),
    });
    println!("{line}");
}
