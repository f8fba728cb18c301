// uPlot with the page's style. Follows the size of its container and the colours of the theme.

import uPlot from "uplot";
import { clock, moment } from "./format.js";
import { colour, onTheme } from "./theme.js";

const FONT = "11px system-ui, sans-serif";

/** A plot in `box`. `options(colour)` returns uPlot's options. A change of the theme recreates the plot. */
export function plot(box, options, data) {
  let current = null;
  let shown = data;
  const size = () => ({ width: Math.max(box.clientWidth, 100), height: Math.max(box.clientHeight, 60) });
  const make = () => {
    current?.destroy();
    const made = options(colour);
    const axes = made.axes.map((axis) => ({
      stroke: colour("muted"),
      font: FONT,
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { show: false },
      ...axis,
    }));
    current = new uPlot({ legend: { show: false }, ...size(), ...made, axes }, shown, box);
  };
  make();
  const resized = new ResizeObserver(() => current.setSize(size()));
  resized.observe(box);
  const ended = onTheme(make);
  return {
    set: (next) => current.setData((shown = next)),
    remake: make,
    get u() {
      return current;
    },
    destroy() {
      ended();
      resized.disconnect();
      current.destroy();
    },
  };
}

/** Labels of a time axis: the time of day, or the date at midnight. */
export function timeLabels(u, splits) {
  const seconds = splits.length > 1 && splits[1] - splits[0] < 60;
  return splits.map((at) => {
    const midnight = splits.length > 1 && splits[1] - splits[0] >= 3600 && new Date(at * 1000).getHours() === 0;
    return midnight ? moment(at * 1000).slice(5, 10) : clock(at * 1000, seconds);
  });
}

export const stepped = uPlot.paths.stepped({ align: 1 });
export const joined = uPlot.join;
