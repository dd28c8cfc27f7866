//! What a person sees of a trace: terminal, JSON, HTML and PNG

pub mod export;
pub mod html;
pub mod json;
pub mod junit;
pub mod map;
pub mod png;
pub mod terminal;
mod text;

pub use terminal::wrap;
pub use text::quoted_path;
pub use varve_analyse::format;
