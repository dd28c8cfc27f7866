//! A picture for papers: the map of time and addresses, one lane for each large object, and the working set.

mod draw;
mod raster;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use varve_analyse::Analysis;
use varve_trace::{Trace, TraceError};

/// How the picture is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PngOptions {
    /// Columns of pixels, at least 800.
    pub width: u32,
    /// Rows of pixels, at least 600.
    pub height: u32,
    /// Lanes at most.
    pub lanes: usize,
}

impl Default for PngOptions {
    fn default() -> Self {
        PngOptions {
            width: 1800,
            height: 1200,
            lanes: 10,
        }
    }
}

/// Why no picture was made.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The file could not be written.
    #[error("cannot write the picture {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The picture could not be drawn.
    #[error("cannot draw the picture: {message}")]
    Draw {
        /// What the drawing library said.
        message: String,
    },
}

/// Draws the picture of a trace and its analysis to a PNG file.
///
/// # Errors
/// See [`PngError`].
pub fn render(
    trace: &Trace,
    analysis: &Analysis,
    path: &Path,
    options: &PngOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<(), PngError> {
    let size = (options.width.max(800), options.height.max(600));
    let layout = draw::Layout::new(size, analysis, options.lanes);
    let map = raster::fill(trace, analysis, &layout, progress)?;
    let pixels = draw::picture(size, analysis, &layout, &map)
        .map_err(|message| PngError::Draw { message })?;
    write(path, size, &pixels).map_err(|source| PngError::Write {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, (width, height): (u32, u32), pixels: &[u8]) -> io::Result<()> {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(())
}
