//! A picture for papers: the map of time and addresses, one lane for each of the hottest allocation sites, and the working set.

mod draw;
mod raster;

use std::io::{self, Write};

use varve_analyse::Analysis;

use crate::map::Map;

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
    /// The file could not be written.
    #[error("cannot write the picture: {0}")]
    Write(#[source] io::Error),
    /// The picture could not be drawn.
    #[error("cannot draw the picture: {message}")]
    Draw {
        /// What the drawing library said.
        message: String,
    },
}

/// Draws the picture of an analysis and its map as PNG.
///
/// # Errors
/// See [`PngError`].
pub fn render(
    analysis: &Analysis,
    map: &Map,
    out: impl Write,
    options: &PngOptions,
) -> Result<(), PngError> {
    let size = (options.width.max(800), options.height.max(600));
    let layout = draw::Layout::new(size, map, options.lanes);
    let pixels = draw::picture(size, analysis, &layout, map)
        .map_err(|message| PngError::Draw { message })?;
    write(out, size, &pixels).map_err(PngError::Write)
}

fn write(out: impl Write, (width, height): (u32, u32), pixels: &[u8]) -> io::Result<()> {
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(())
}
