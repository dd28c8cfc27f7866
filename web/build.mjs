// Bundles src/ into dist/report.html: one file, no outside reference, one placeholder for the data.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";

const here = new URL("./", import.meta.url);
const script = await build({
  entryPoints: [new URL("src/main.ts", here).pathname],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  write: false,
  legalComments: "none",
});
const style = await build({
  entryPoints: [new URL("src/style.css", here).pathname],
  minify: true,
  write: false,
});
const page = await readFile(new URL("src/page.html", here), "utf8");
// A replacement function: "$&" and its kin in minified code must not be read as patterns.
const out = page
  .replace("/*STYLE*/", () => style.outputFiles[0].text.trim())
  .replace("/*SCRIPT*/", () => script.outputFiles[0].text.trim().replaceAll("</script", "<\\/script"));
await mkdir(new URL("dist/", here), { recursive: true });
await writeFile(new URL("dist/report.html", here), out);
console.log(`web/dist/report.html: ${(out.length / 1024).toFixed(1)} KiB`);
