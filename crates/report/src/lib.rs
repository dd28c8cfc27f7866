//! What a person sees of a trace: terminal, JSON, HTML and PNG

pub mod export;
pub mod html;
pub mod json;
pub mod png;
pub mod terminal;

pub use varve_analyse::format;
