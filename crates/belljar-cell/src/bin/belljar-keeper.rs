//! A keeper by itself, for programs that use the library and cannot be their own keeper.

fn main() {
    belljar_cell::keeper::run_if_asked();
    std::process::exit(2);
}
