//! A spawner of keepers by itself, for programs that use the library and cannot be their own.

fn main() {
    belljar_cell::spawner::run_if_asked();
    std::process::exit(2);
}
