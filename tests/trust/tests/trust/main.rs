//! The trust suite: a module for each part of the threat model in `SECURITY.md`.

mod capabilities;
mod clocks;
mod containers;
mod cost;
mod ends;
mod figures;
mod files;
mod folders;
mod forked;
mod handler;
mod hold;
mod hostile;
mod kept;
mod kernel;
mod killed;
mod loaders;
mod others;
mod reports;
mod rests;
mod rings;
mod rounds;
mod sandbox;
mod shared;
mod slices;
mod transfers;
mod unseen;
