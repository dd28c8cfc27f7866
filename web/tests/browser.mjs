// A real browser for the tests of a file, with the network watched.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { chromium } from "playwright-core";

const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(p => p && existsSync(p));
let browser, folder, files = 0;

before(async () => {
  assert.ok(executablePath, "no browser found; hint: apt install chromium, or set CHROMIUM to one");
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  folder = await mkdtemp(join(tmpdir(), "varve-page-"));
});
after(async () => {
  await browser?.close();
  if (folder) await rm(folder, { recursive: true });
});

/** The path of a new page. */
export function file() {
  return join(folder, `${files++}.html`);
}

/** Opens a page, and keeps what it complains of and asks for. */
export async function open(t, path, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "dark", ...options });
  const page = await context.newPage();
  page.complaints = [];
  page.requests = [];
  page.on("console", m => { if (["error", "warning"].includes(m.type())) page.complaints.push(m.text()); });
  page.on("pageerror", e => page.complaints.push(String(e)));
  page.on("request", r => { if (!r.url().startsWith("file://") || !r.url().endsWith(".html")) page.requests.push(r.url()); });
  t.after(() => context.close());
  await page.goto(`file://${path}`);
  return page;
}

/** Fails where a page complained or asked for anything but itself. */
export function clean(page) {
  assert.deepEqual(page.complaints, []);
  assert.deepEqual(page.requests, []);
}
