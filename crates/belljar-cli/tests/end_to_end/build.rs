//! `belljar build` on real parts: beside Docker, under attack, under kills, and by its own words.

mod answers;
mod beside_docker;
mod flat;
mod hostile;
mod shop;
