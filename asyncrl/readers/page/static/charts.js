// Lines over steps or time, drawn on a canvas. chart(root, options) appends a figure to `root` and returns
// { update(changed), remove() }. Options:
//   title, x      what the chart shows, the name of its horizontal axis
//   series        [{ name, points: [[x, y]], low, high, color }]: y may be null; low and high are arrays parallel to
//                 points, or absent; color is a CSS variable such as "--accent", or any CSS colour
//   isLog         logarithmic axis; what is not positive is not drawn
//   xTicks, xText places of the numbers at the horizontal axis, and x -> text (default: round numbers, short)
//   smoothing     0 to 0.99: the weight of what was, in an exponential mean; the raw line stays, faint
//   format        number -> text (default: short)
//   onPick        called with x of the nearest point, and its index, on a click
// Dragging zooms, a double click resets. Charts of one root share the cursor and the zoom.

const CHART_COLORS = ["--accent", "--bad", "--odd", "--good", "--warn"];
const CHART_HEIGHT = 190;
const MARGIN = { left: 46, right: 10, top: 8, bottom: 20 };
const chartGroups = new WeakMap();

function chartGroup(root) {
  if (!chartGroups.has(root)) chartGroups.set(root, { cursor: null, range: null, members: new Set() });
  return chartGroups.get(root);
}

function smoothed(points, weight) {
  let mean = 0;
  let total = 0;
  return points.map(([x, y]) => {
    if (!isNumber(y)) return [x, null];
    mean = weight * mean + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, mean / total];
  });
}

// At most `most` round numbers in [low, high].
function ticks(low, high, most) {
  const rough = (high - low) / most;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

// Powers of ten, thinned to `most`; with few of them, 2 and 5 in between.
function logTicks(low, high, most) {
  const first = Math.floor(low);
  const last = Math.ceil(high);
  const every = Math.max(1, Math.ceil((last - first) / most));
  const factors = high - low < 1.5 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = first; power <= last; power += every) for (const factor of factors) found.push(power + Math.log10(factor));
  return found.filter((at) => at >= low && at <= high);
}

// The index of the point nearest to x; points are in order of x.
function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(points[high][0] - x) < Math.abs(points[low][0] - x) ? high : low;
}

function chart(root, options) {
  const group = chartGroup(root);
  const format = (value) => (options.format ?? short)(value);
  const xText = (x) => (options.xText ?? short)(x);
  const canvas = element("canvas", { role: "img" });
  const title = element("b");
  const legend = element("span", { className: "legend" });
  const readout = element("div", { className: "readout", hidden: true });
  const figure = element("figure", { className: "chart" }, element("figcaption", {}, title, legend), element("div", { className: "plot" }, canvas, readout));
  let lines = [];
  let scale = null;
  let pressed = null;
  let isDrawn = true;
  let isSeen = false;
  let isStale = true;

  const colorOf = (styles, color) => (color.startsWith("--") ? styles.getPropertyValue(color) : color);

  function prepare() {
    lines = options.series.map((one, index) => ({
      ...one,
      color: one.color ?? CHART_COLORS[index] ?? `hsl(${(index * 137.508) % 360} 60% 50%)`,
      drawn: options.smoothing ? smoothed(one.points, options.smoothing) : one.points,
    }));
    const last = (one) => one.drawn.findLast(([, y]) => isNumber(y))?.[1];
    title.textContent = options.title;
    legend.replaceChildren(
      ...lines.map((one) => {
        const mark = element("i");
        mark.style.background = one.color.startsWith("--") ? `var(${one.color})` : one.color;
        return element("span", {}, mark, `${lines.length > 1 ? `${one.name} ` : ""}${format(last(one))}`);
      }),
    );
    canvas.setAttribute("aria-label", `${options.title}: ${lines.map((one) => `${one.name} ${format(last(one))}`).join(", ")}`);
  }

  function extents() {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { points } of lines) {
      if (points.length === 0) continue;
      left = Math.min(left, points[0][0]);
      right = Math.max(right, points.at(-1)[0]);
    }
    const [from, to] = group.range ?? [left, right];
    const seen = (y) => {
      if (!isNumber(y) || (options.isLog && y <= 0)) return;
      low = Math.min(low, y);
      high = Math.max(high, y);
    };
    for (const one of lines) {
      one.points.forEach(([x, y], index) => {
        if (x < from || x > to) return;
        seen(y);
        if (one.low && isNumber(y)) seen(one.low[index]), seen(one.high[index]);
      });
    }
    if (low > high) return null;
    if (options.isLog) [low, high] = [Math.log10(low), Math.log10(high)];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    // A scale that nearly reaches zero begins there.
    const floor = !options.isLog && low >= 0 && low <= 0.4 * high ? 0 : low - pad;
    return { from, to: to > from ? to : from + 1, low: floor, high: high + pad };
  }

  function draw() {
    isDrawn = true;
    isStale = false;
    const width = figure.clientWidth;
    if (width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(CHART_HEIGHT * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const styles = getComputedStyle(document.documentElement);
    const ends = extents();
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.fillStyle = styles.getPropertyValue("--muted");
    scale = null;
    if (ends === null) {
      pen.fillText("no value yet", MARGIN.left, CHART_HEIGHT / 2);
      return;
    }
    const place = {
      x: (x) => MARGIN.left + ((x - ends.from) / (ends.to - ends.from)) * (width - MARGIN.left - MARGIN.right),
      y: (y) => CHART_HEIGHT - MARGIN.bottom - (((options.isLog ? Math.log10(y) : y) - ends.low) / (ends.high - ends.low)) * (CHART_HEIGHT - MARGIN.top - MARGIN.bottom),
      back: (pixel) => ends.from + ((pixel - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (ends.to - ends.from),
    };
    scale = place;
    drawAxes(pen, styles, ends, place, width);
    pen.save();
    pen.beginPath();
    pen.rect(MARGIN.left - 3, 0, width - MARGIN.left - MARGIN.right + 6, CHART_HEIGHT - MARGIN.bottom + 3);
    pen.clip();
    for (const one of lines) drawLine(pen, colorOf(styles, one.color), one, ends, place);
    drawSelection(pen, styles, place, width);
    pen.restore();
  }

  function drawAxes(pen, styles, ends, place, width) {
    const levels = options.isLog ? logTicks(ends.low, ends.high, 4) : ticks(ends.low, ends.high, 4);
    pen.strokeStyle = styles.getPropertyValue("--line");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const level of levels) {
      const value = options.isLog ? 10 ** level : level;
      const y = Math.round(place.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(MARGIN.left, y);
      pen.lineTo(width - MARGIN.right, y);
      pen.stroke();
      pen.fillText(format(value), MARGIN.left - 6, y);
    }
    pen.textBaseline = "alphabetic";
    const most = Math.max(2, Math.floor(width / 90));
    const columns = options.xTicks ? options.xTicks.filter((_, index) => index % Math.ceil(options.xTicks.length / (2 * most)) === 0) : ticks(ends.from, ends.to, most);
    columns.forEach((x) => {
      pen.textAlign = x === ends.from ? "left" : "center";
      if (place.x(x) < width - 14) pen.fillText(xText(x), place.x(x), CHART_HEIGHT - 5);
    });
    pen.textAlign = "right";
    pen.fillText(options.x ?? "", width - MARGIN.right, CHART_HEIGHT - 5);
  }

  function drawLine(pen, color, one, ends, place) {
    const isShown = ([x, y]) => isNumber(y) && (!options.isLog || y > 0);
    const path = (points) => {
      pen.beginPath();
      let isOn = false;
      points.forEach((point) => {
        if (!isShown(point)) return;
        const [x, y] = [place.x(point[0]), place.y(point[1])];
        if (isOn) pen.lineTo(x, y);
        else pen.moveTo(x, y);
        isOn = true;
      });
      pen.stroke();
    };
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineJoin = "round";
    if (one.low) {
      pen.globalAlpha = 0.16;
      pen.beginPath();
      const within = one.points.map((point, index) => [point[0], one.low[index], one.high[index]]).filter(([, low, high]) => isNumber(low) && isNumber(high) && (!options.isLog || low > 0));
      within.forEach(([x, , high]) => pen.lineTo(place.x(x), place.y(high)));
      within.reverse().forEach(([x, low]) => pen.lineTo(place.x(x), place.y(low)));
      pen.fill();
    }
    if (options.smoothing) {
      pen.globalAlpha = 0.25;
      pen.lineWidth = 1 / (window.devicePixelRatio || 1);
      path(one.points);
    }
    const visible = one.drawn.filter((point) => isShown(point) && point[0] >= ends.from && point[0] <= ends.to);
    // A line of many points takes a sixth of the time where it is one pixel wide. A mean needs fewer points.
    const most = (place.x(ends.to) - place.x(ends.from)) / 1.5;
    const every = options.smoothing ? Math.max(1, Math.ceil(visible.length / most)) : 1;
    pen.globalAlpha = 1;
    pen.lineWidth = visible.length > every * most ? 1 / (window.devicePixelRatio || 1) : 1.6;
    path(one.drawn.filter((_, index) => (one.drawn.length - 1 - index) % every === 0));
    // Few points are marked: a line between two evaluations is no measurement.
    if (visible.length > 40) return;
    for (const [x, y] of visible) {
      pen.beginPath();
      pen.arc(place.x(x), place.y(y), 2.4, 0, 7);
      pen.fill();
    }
  }

  function drawSelection(pen, styles, place, width) {
    if (pressed !== null && pressed.now !== pressed.start) {
      pen.fillStyle = styles.getPropertyValue("--accent");
      pen.globalAlpha = 0.14;
      pen.fillRect(Math.min(pressed.start, pressed.now), 0, Math.abs(pressed.now - pressed.start), CHART_HEIGHT);
      pen.globalAlpha = 1;
    }
    if (group.cursor === null) return;
    const x = Math.round(place.x(group.cursor)) + 0.5;
    pen.strokeStyle = styles.getPropertyValue("--muted");
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(x, 0);
    pen.lineTo(x, CHART_HEIGHT);
    pen.stroke();
    pen.setLineDash([]);
    for (const one of lines) {
      const point = one.drawn[nearest(one.drawn, group.cursor)];
      if (!point || !isNumber(point[1]) || (options.isLog && point[1] <= 0)) continue;
      pen.fillStyle = colorOf(styles, one.color);
      pen.beginPath();
      pen.arc(place.x(point[0]), place.y(point[1]), 3.5, 0, 7);
      pen.fill();
    }
  }

  // Several changes within a frame are drawn once, and a hidden chart only once it is scrolled to.
  function redraw() {
    isStale = true;
    if (!isDrawn || !isSeen) return;
    isDrawn = false;
    requestAnimationFrame(draw);
  }

  function pointAt(event) {
    if (scale === null) return null;
    const x = scale.back(event.offsetX);
    let found = null;
    for (const one of lines) {
      const index = nearest(one.points, x);
      const point = one.points[index];
      if (point && (found === null || Math.abs(point[0] - x) < Math.abs(found.x - x))) found = { x: point[0], index };
    }
    return found;
  }

  function showReadout(event) {
    const at = pointAt(event);
    readout.hidden = at === null;
    group.cursor = at === null ? null : at.x;
    group.members.forEach((member) => member());
    if (at === null) return;
    const rows = lines.map((one) => {
      const index = nearest(one.points, at.x);
      const point = one.points[index];
      if (!point) return "";
      const away = point[0] === at.x ? "" : ` (at ${xText(point[0])})`;
      const interval = one.low && isNumber(one.low[index]) ? `  ${format(one.low[index])} to ${format(one.high[index])}` : "";
      const mean = options.smoothing ? `, smoothed ${format(one.drawn[index][1])}` : "";
      return `${lines.length > 1 ? `${one.name} ` : ""}${format(point[1])}${interval}${mean}${away}`;
    });
    readout.textContent = [`${options.x ?? "x"} ${xText(at.x)}`, ...rows.filter(Boolean)].join("\n");
    const isRight = event.offsetX > figure.clientWidth / 2;
    readout.style.left = isRight ? "" : `${event.offsetX + 14}px`;
    readout.style.right = isRight ? `${figure.clientWidth - event.offsetX + 14}px` : "";
  }

  function zoom(range) {
    group.range = range;
    group.members.forEach((member) => member());
  }

  canvas.addEventListener("pointermove", (event) => {
    if (pressed !== null) pressed.now = event.offsetX;
    showReadout(event);
  });
  canvas.addEventListener("pointerleave", () => {
    readout.hidden = true;
    group.cursor = null;
    group.members.forEach((member) => member());
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || scale === null) return;
    pressed = { start: event.offsetX, now: event.offsetX };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    const { start, now } = pressed ?? { start: 0, now: 0 };
    const wasPressed = pressed !== null;
    pressed = null;
    if (!wasPressed || scale === null) return;
    if (Math.abs(now - start) > 6) return zoom([start, now].map(scale.back).sort((a, b) => a - b));
    const at = pointAt(event);
    redraw();
    // A second click may follow, which resets the zoom instead.
    if (at === null || !options.onPick) return;
    clearTimeout(picking);
    picking = setTimeout(() => options.onPick(at.x, at.index), 250);
  });
  canvas.addEventListener("dblclick", () => {
    clearTimeout(picking);
    zoom(null);
  });
  let picking = null;
  const resized = new ResizeObserver(redraw);
  const scrolled = new IntersectionObserver((entries) => {
    isSeen = entries.at(-1).isIntersecting;
    if (isSeen && isStale) redraw();
  });
  root.append(figure);
  resized.observe(figure);
  scrolled.observe(figure);
  group.members.add(redraw);
  document.addEventListener("theme", redraw);

  function update(changed) {
    Object.assign(options, changed);
    prepare();
    redraw();
  }

  function remove() {
    resized.disconnect();
    scrolled.disconnect();
    group.members.delete(redraw);
    document.removeEventListener("theme", redraw);
    figure.remove();
  }

  update({});
  return { update, remove };
}

// A line as small as a word; `points` as in a chart, between `low` and `high`.
function sparkline(points, low = 0, high = 1) {
  const [width, height] = [120, 26];
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("class", "sparkline");
  if (points.length > 0) {
    const [from, to] = [points[0][0], Math.max(points.at(-1)[0], points[0][0] + 1)];
    const place = ([x, y]) => [3 + ((x - from) / (to - from)) * (width - 6), height - 3 - ((y - low) / (high - low)) * (height - 6)];
    line.setAttribute("points", points.map((point) => place(point).map((at) => at.toFixed(1)).join(",")).join(" "));
    const end = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    const [x, y] = place(points.at(-1));
    for (const [name, value] of [["cx", x], ["cy", y], ["r", 2.4]]) end.setAttribute(name, value);
    drawing.append(line, end);
  }
  return drawing;
}
