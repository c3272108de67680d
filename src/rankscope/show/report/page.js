/* Draw every figure of the page from its embedded specification. */
(() => {
  "use strict";
  const AXIS = 64; // width of the axis beside a plot
  const GAP = 48;
  let hinted = false;
  const HINT = "Hover over a curve or a name to highlight it; click a name to keep the highlight.";

  /* Wrap the subtitle of a panel to its width. */
  const wrapped = (title, wide) => {
    if (typeof title?.subtitle !== "string") return title;
    const most = Math.floor((wide + 30) / 6);
    const lines = [""];
    for (const word of title.subtitle.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (longer.length > most && lines.at(-1)) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    return { ...title, subtitle: lines };
  };

  /* Fit our panels to the available width, in one or two columns. Heatmaps of squares keep their
     size, as many per row as fit. */
  const fitted = (spec, width) => {
    const ours = spec.usermeta?.rankscope;
    if (ours?.square) {
      const fit = Math.floor((width + GAP) / (ours.square + GAP));
      return { ...spec, columns: Math.max(1, Math.min(fit, spec.concat.length)) };
    }
    if (!ours?.panels) return spec;
    const columns = width >= 700 && spec.concat.length > 1 ? 2 : 1;
    const available = Math.floor((width - 24 - GAP * (columns - 1)) / columns) - AXIS;
    const wide = Math.max(200, available);
    const legend = {
      ...spec.config.legend,
      columns: Math.max(1, Math.floor((width - AXIS) / ours.legendEntry)),
      labelLimit: Math.min(spec.config.legend.labelLimit, width - AXIS - 20),
    };
    return {
      ...spec,
      columns,
      concat: spec.concat.map((panel) =>
        ({ ...panel, width: wide, title: wrapped(panel.title, wide) })),
      config: { ...spec.config, legend },
    };
  };

  const picture = (figure) => {
    const parsed = new DOMParser().parseFromString(
      figure.querySelector("noscript").textContent, "text/html");
    return parsed.querySelector("img");
  };

  const caption = (figure, interactive) => {
    const line = document.createElement("figcaption");
    const hint = document.createElement("span");
    hint.textContent = interactive && !hinted ? HINT : "";
    hinted ||= interactive;
    const link = document.createElement("a");
    link.href = picture(figure).src;
    const kind = link.href.startsWith("data:image/svg") ? "svg" : "png";
    link.textContent = `Save as ${kind.toUpperCase()}`;
    link.download = figure.dataset.title.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase() + "." + kind;
    line.append(hint, link);
    figure.append(line);
  };

  const draw = async (figure) => {
    const holder = figure.querySelector(".chart");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const options = { mode: "vega-lite", renderer: "svg", actions: false };
    let drawn = null;
    let last = 0;
    const redraw = async () => {
      const width = holder.clientWidth;
      if (width === 0 || (drawn && Math.abs(width - last) < 8)) return;
      last = width;
      const before = drawn;
      drawn = await vegaEmbed(holder, fitted(spec, width), options);
      before?.finalize();
      if (spec.usermeta?.rankscope) holder.dataset.width = width; // redrawn for another width
    };
    await redraw();
    caption(figure, Boolean(spec.params));
    if (spec.usermeta?.rankscope) {
      let waiting = 0;
      addEventListener("resize", () => {
        clearTimeout(waiting);
        waiting = setTimeout(redraw, 150);
      });
    }
  };

  for (const figure of document.querySelectorAll("figure")) {
    draw(figure).catch((error) => {
      console.error(error);
      const holder = figure.querySelector(".chart");
      holder.classList.add("static");
      holder.replaceChildren(picture(figure));
    });
  }
})();
