// Builds the fleet page as a single file: `node build.mjs [OUT]`, by default ../src/query/src/admin/page.html.
//
// Reproducible: the same sources and package-lock.json produce the same bytes, so a test can compare the committed file.
// The page must contain exactly one <style> and one <script>; the service hashes both for its Content-Security-Policy.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = process.argv[2] ?? here("../src/query/src/admin/page.html");

async function bundle(entry, options) {
  const result = await build({
    entryPoints: [here(entry)],
    bundle: true,
    minify: true,
    write: false,
    charset: "utf8",
    legalComments: "none",
    target: ["chrome123", "firefox121", "safari17.5"],
    logLevel: "warning",
    ...options,
  });
  const text = result.outputFiles[0].text.trim();
  if (/<\/(script|style)/i.test(text)) throw new Error(`${entry} contains a closing tag and cannot be embedded in the page`);
  return text;
}

const script = await bundle("src/main.js", { format: "iife" });
const style = await bundle("src/style.css", {});
const licence = readFileSync(here("node_modules/uplot/LICENSE"), "utf8").trim();

// A hash of the names and contents of all sources. With it a test detects an outdated page without node.
const sources = [...readdirSync(here("src")).map((name) => `src/${name}`), "build.mjs", "package-lock.json"].sort();
const hash = createHash("sha256");
for (const name of sources)
  hash
    .update(`${name}\0`)
    .update(readFileSync(here(name)))
    .update("\0");

// Replacements are functions, because `$` in minified code must not act as a pattern.
const page = readFileSync(here("src/index.html"), "utf8")
  .replace(
    "@LICENCE@",
    () => `Built by web/build.sh; do not edit.\nSources: ${hash.digest("hex")}\nHolds uPlot:\n\n${licence}`,
  )
  .replace("@STYLE@", () => style)
  .replace("@SCRIPT@", () => script);
writeFileSync(out, page);
console.log(`${out}: ${page.length} bytes`);
