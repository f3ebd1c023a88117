// SPDX-License-Identifier: Apache-2.0
// chart.js - draws the curves of jobs as SVG, for the page of `titanctl report` and for the coordinator's page. Text only
// ever becomes a text node, and colours are set by properties: a policy without inline styles allows them.
"use strict";
const CHARTS = [
	{id: "loss", title: "Loss", curves: [["loss", "training"], ["validation", "validation"]], log: true, checkpoints: true},
	{id: "grad_norm", title: "Gradient norm", curves: [["grad_norm", "gradient norm"]], log: true},
	{id: "learning_rate", title: "Learning rate", curves: [["learning_rate", "learning rate"]]},
	{id: "tokens", title: "Tokens per second", curves: [["tokens_per_second", "tokens/s"]], zero: true},
	{id: "step_ms", title: "Step time, ms", curves: [["step_ms", "step"]], zero: true, log: true},
	{id: "split", title: "Where the time of a step went, ms (means)", stack: true, zero: true,
		curves: [["compute_ms", "compute"], ["data_ms", "data"], ["communication_ms", "exposed communication"],
			["checkpoint_ms", "checkpoint"], ["straggler_ms", "waiting for stragglers"]]},
	{id: "slowest", title: "Slowest rank (that the others waited for longest)", ranks: true, zero: true},
	{id: "tflops", title: "TFLOP/s of a worker", curves: [["tflops", "TFLOP/s"]], zero: true, some: true},
	{id: "mfu", title: "MFU, %", curves: [["mfu", "MFU"], ["mfu_causal", "causal"]], zero: true, some: true, scale: 100},
	{id: "experts", title: "Tokens of an expert in a step", zero: true,
		curves: [["expert_tokens_mean", "mean"], ["expert_tokens_min", "fewest"], ["expert_tokens_max", "most"]]},
	{id: "dropped", title: "Tokens dropped, as experts had no room", zero: true, some: true, curves: [["expert_tokens_dropped", "dropped"]]},
	{id: "rounds", title: "Further rounds of experts' rows", zero: true, some: true, curves: [["expert_further_rounds", "rounds"]]},
	{id: "room", title: "expert_parallel_room that would need no further round", zero: true, some: true, curves: [["expert_room_needed", "room"]]},
	{id: "memory", title: "Memory, GiB (the most of any rank)", curves: [["memory_bytes", "peak"]], zero: true, some: true, scale: 2 ** -30},
	{id: "world", title: "Workers", world: true, zero: true},
];
const KINDS = [["loss", "workers lost"], ["recovery", "recoveries"], ["resize", "resizes"], ["warning", "warnings"], ["state", "states"]];
let shows = 0;
const LEFT = 62, RIGHT = 14, TOP = 8, BOTTOM = 22, GAP = 10;
const SVG = new Set(["svg", "g", "path", "line", "text", "rect", "circle", "title"]);

const element = (name, attributes, parent, text) => {
	const e = SVG.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
	for (const [key, value] of Object.entries(attributes || {}))
		e.setAttribute(key, value);
	if (text !== undefined)
		e.textContent = text;
	if (parent)
		parent.appendChild(e);
	return e;
};
// An upright line; a title tells what it stands for.
const upright = (parent, kind, x, y1, y2, title, more) => {
	const line = element("line", {class: kind, x1: px(x), x2: px(x), y1, y2, ...more}, parent);
	if (title)
		element("title", {}, line, title);
	return line;
};
const swatch = (name, parent, colour, kind = "") => {
	element(name, {class: kind}, parent).style.background = colour;
};

// --- numbers ---
const number = v => {
	if (v === null || v === undefined)
		return "not finite";
	const a = Math.abs(v);
	if (a !== 0 && (a < 1e-3 || a >= 1e12))
		return v.toExponential(3).replace(/\.?0+e/, "e");
	for (const [unit, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
		if (a >= unit * 10 || (a >= unit && unit > 1e3))
			return +(v / unit).toPrecision(4) + letter;
	return String(+v.toPrecision(5));
};
const px = v => v.toFixed(1);
// As format_duration() of base/units.c.
const duration = ms => {
	const s = Math.round(ms / 1000), pair = (of, part, most, unit, small, width) => Math.floor(s / of) + unit + " " + String(Math.floor(s / part) % most).padStart(width, 0) + small;
	return !(ms >= 0) ? "-" : ms < 999.5 ? Math.round(ms) + " ms" : ms < 9950 ? (ms / 1000).toFixed(1) + "s" : s < 60 ? s + "s"
		: s < 3600 ? pair(60, 1, 60, "m", "s", 2) : s < 86400 ? pair(3600, 60, 60, "h", "m", 2) : pair(86400, 3600, 24, "d", "h", 1);
};
const ticks = (min, max, most, steps) => {
	const rough = (max - min) / most;
	let step = 10 ** Math.floor(Math.log10(rough));
	step = steps ? steps.find(s => s >= rough) || Math.ceil(rough / 86400e3) * 86400e3
		: [1, 2, 5, 10].map(f => f * step).find(s => s >= rough * 0.999);
	const out = [];
	for (let t = Math.ceil(min / step - 1e-9) * step; t <= max + step * 1e-9 && out.length < 50; t += step)
		out.push(Math.abs(t) < step / 1e6 ? 0 : t);
	return out;
};
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map(s => s * 1000);
const logTicks = (min, max) => {
	const out = [];
	for (let d = Math.floor(Math.log10(min)); d <= Math.ceil(Math.log10(max)); d++)
		for (const f of max / min > 1e4 ? [1] : max / min > 30 ? [1, 3] : [1, 2, 3, 5, 7])
			if (f * 10 ** d >= min * 0.999 && f * 10 ** d <= max * 1.001)
				out.push(f * 10 ** d);
	return out.length > 1 ? out : ticks(min, max, 4);
};

// --- curves ---
const pathOf = (xs, ys, broken) => {
	let path = "", open = false;
	for (let i = 0; i < xs.length; i++) {
		if (ys[i] === null) {
			open = false;
			continue;
		}
		path += (open ? "L" : "M") + px(xs[i]) + " " + px(ys[i]);
		open = !(broken && broken[i]);
	}
	return path;
};
// One curve's means on top of the others', of the ranges that were measured.
const layersOf = ({curves}, names) => {
	const have = names.map(name => curves[name].mean);
	const at = curves.step.map((_, i) => i).filter(i => have.every(mean => mean[i] !== null));
	let low = at.map(() => 0);
	return have.map(mean => {
		const layer = {at, low, top: low.map((v, k) => v + mean[at[k]])};
		low = layer.top;
		return layer;
	});
};

/* Draws runs into root, and switches into controls. A run is {data, colour, label}; data has "curves", "worlds",
 * "events", "checkpoints" and "until_ms" as put_data() of ctl/report_page.c writes them. One run has all its curves;
 * of several each has the first curve of a chart, in its colour. options: ids (the charts, in order; default all),
 * columns (most charts beside each other). */
const showCharts = (root, controls, options = {}) => {
	const settings = {x: "step", log: false, kinds: new Set(["loss", "recovery", "resize"])};
	let runs = [], drawn = [], pointed = null, width = 0;
	const group = "x" + shows++;
	const count = run => run.data.curves.step.length, alone = () => runs.length === 1;

	// --- the axis that all charts share ---
	const xOf = ({data: {curves}}, i) => settings.x === "time" ? curves.at_ms[i] : curves[settings.x][i];
	const xLast = run => {
		const {curves, until_ms} = run.data, i = count(run) - 1;
		return settings.x === "time" ? Math.max(until_ms, i < 0 ? 0 : curves.at_ms[i])
			: i < 0 ? 1 : settings.x === "step" ? curves.last_step[i] : xOf(run, i);
	};
	// The x of a time; between two steps, its part of the way.
	const xAt = (run, ms) => {
		const at = run.data.curves.at_ms;
		if (settings.x === "time")
			return ms;
		if (!at.length || ms <= at[0])
			return at.length ? xOf(run, 0) : 0;
		let low = 0, high = at.length;
		while (high - low > 1) {
			const middle = (low + high) >> 1;
			if (at[middle] <= ms)
				low = middle;
			else
				high = middle;
		}
		if (low === at.length - 1)
			return xLast(run);
		return xOf(run, low) + (ms - at[low]) / (at[low + 1] - at[low] || 1) * (xOf(run, low + 1) - xOf(run, low));
	};
	const rangeX = () => {
		const firsts = runs.map(run => settings.x !== "time" && count(run) ? xOf(run, 0) : 0);
		const first = Math.min(...firsts);
		return [first, Math.max(first + 1, ...runs.map(xLast))];
	};

	// --- a chart ---
	const linesOf = chart => {
		const out = [];
		if (alone() && chart.curves)
			chart.curves.forEach(([name, label]) => out.push({run: runs[0], name, label}));
		else if (alone() || !(chart.ranks || chart.stack))
			for (const run of runs)
				out.push({run, name: chart.curves ? chart.curves[0][0] : "slowest", label: run.label, own: run.colour});
		const have = out.filter(({run: {data}, name}) => chart.world ? data.worlds.length : data.curves[name]);
		have.forEach((line, i) => { line.colour = line.own || "var(--c" + (chart.ranks ? 1 : i) + ")"; });
		const any = ({run, name}) => !chart.some || run.data.curves[name].mean.some(v => v > 0);
		return chart.world || chart.ranks || have.some(any) ? have : [];
	};
	const rangeY = (chart, lines, log) => {
		let min = Infinity, max = -Infinity;
		const see = v => {
			if (v === null || (log && v <= 0))
				return;
			min = Math.min(min, v);
			max = Math.max(max, v);
		};
		if (chart.stack)
			layersOf(lines[0].run.data, lines.map(l => l.name)).forEach(layer => layer.top.forEach(see));
		else
			for (const {run: {data}, name} of lines) {
				const c = data.curves[name];
				const all = chart.world ? [data.worlds.map(w => w.world)] : chart.ranks ? [c] : [c.mean, c.min || [], c.max || []];
				all.forEach(values => values.forEach(v => see(v === null ? null : v * (chart.scale || 1))));
			}
		if (min > max)
			return [0, 1];
		if (log)
			return min === max ? [min / 2, max * 2] : [min, max];
		if (chart.zero)
			min = Math.min(min, 0);
		const room = (max - min) * 0.04 || Math.abs(max) * 0.1 || 1;
		return [min === 0 ? 0 : min - room, max + room];
	};
	const dots = (parent, xs, ys, colour) => {
		const some = ys.map((y, i) => i).filter(i => ys[i] !== null);
		if (some.length <= 60)
			some.forEach(i => element("circle", {cx: px(xs[i]), cy: px(ys[i]), r: 2.2, fill: colour}, parent));
	};
	const drawCurve = (chart, svg, {run, name, label, colour}, x, y, bottom) => {
		const c = run.data.curves[name], n = count(run);
		const place = v => v === null ? null : y(v * (chart.scale || 1));
		const xs = c.mean.map((_, i) => x(xOf(run, i)));
		// A validation now and then is a line through its values; a gap in it says nothing.
		const sparse = name === "validation";
		const keep = sparse ? c.mean.map((v, i) => i).filter(i => c.mean[i] !== null) : null;
		const pick = values => keep ? keep.map(i => values[i]) : values;
		const means = pick(c.mean.map(place));
		if (c.min && !sparse)
			for (let i = 0; i < n;) {
				let to = i;
				while (to < n && c.mean[to] !== null && !(to > i && c.bad && c.bad[to - 1]))
					to++;
				if (to > i + 1) {
					const top = pathOf(xs.slice(i, to), c.max.slice(i, to).map(place));
					const low = pathOf(xs.slice(i, to).reverse(), c.min.slice(i, to).map(place).reverse());
					if (top && low)
						element("path", {class: "band", d: top + low.replace("M", "L") + "Z", fill: colour, stroke: colour}, svg);
				}
				i = Math.max(to, i + 1);
			}
		element("path", {class: "curve", "data-curve": name, d: pathOf(pick(xs), means, sparse ? null : c.bad), stroke: colour}, svg);
		if (sparse || n <= 60)
			dots(svg, pick(xs), means, colour);
		(c.bad || []).forEach((bad, i) => {
			if (bad && !sparse)
				upright(svg, "bad", xs[i], bottom - 7, bottom, label + ": " + bad + " not finite");
		});
	};
	const drawLayers = (svg, lines, x, y) => {
		const run = lines[0].run;
		layersOf(run.data, lines.map(l => l.name)).forEach((layer, k) => {
			const xs = layer.at.map(i => x(xOf(run, i))), {colour, name} = lines[k];
			const path = pathOf(xs, layer.top.map(y)) + pathOf([...xs].reverse(), layer.low.map(y).reverse()).replace("M", "L");
			element("path", {class: "area", "data-curve": name, d: path + "Z", fill: colour, stroke: colour}, svg);
		});
	};
	// A dash over ranges beside each other that have the same rank; ranges that were not measured between them are taken for it.
	const drawRanks = (svg, {run, colour}, x, y) => {
		const {curves} = run.data;
		const at = curves.step.map((_, i) => i).filter(i => curves.slowest[i] !== null);
		let path = "";
		for (let k = 0, to; k < at.length; k = to) {
			const rank = curves.slowest[at[k]], from = x(xOf(run, at[k]));
			for (to = k + 1; to < at.length && curves.slowest[at[to]] === rank;)
				to++;
			const until = x(xOf(run, at[Math.min(to, at.length - 1)]));
			path += "M" + px(from) + " " + px(y(rank)) + "H" + px(Math.max(until, from + 2));
		}
		element("path", {class: "curve ranks", "data-curve": "slowest", d: path, stroke: colour}, svg);
	};
	const drawWorld = (svg, {run, colour}, x, y) => {
		let path = "";
		run.data.worlds.forEach((w, i) => {
			const at = px(x(xAt(run, w.at_ms)));
			path += i ? "H" + at + "V" + px(y(w.world)) : "M" + at + " " + px(y(w.world));
			if (w.world)
				element("title", {}, element("circle", {class: "epoch", cx: at, cy: px(y(w.world)), r: 2.5, fill: colour}, svg), "epoch " + w.epoch + " of " + w.world + " workers");
		});
		element("path", {class: "curve", "data-curve": "world", d: path + "H" + px(x(xLast(run))), stroke: colour}, svg);
	};
	// One mark of a kind to a pixel: a thousand losses are no wall. Marks of several runs are short, and in their colours.
	const drawEvents = (chart, svg, x, bottom) => {
		for (const run of runs) {
			const taken = new Set(), one = alone();
			for (const e of run.data.events) {
				const at = x(xAt(run, e.at_ms)), key = e.kind + Math.round(at);
				if (!settings.kinds.has(e.kind) || taken.has(key) || at < LEFT - 1)
					continue;
				taken.add(key);
				upright(svg, "event", at, one ? TOP : bottom - 8, bottom, (one ? "" : run.label + ": ") + (e.message || e.type),
					{"data-kind": e.kind, stroke: one ? "var(--" + e.kind + ")" : run.colour});
			}
			for (const c of chart.checkpoints && one ? run.data.checkpoints : []) {
				const at = x(xAt(run, c.at_ms)), key = "c" + Math.round(at);
				if (taken.has(key))
					continue;
				taken.add(key);
				upright(svg, "checkpoint", at, bottom - 4, bottom + 2, "checkpoint of step " + c.step);
			}
		}
	};
	const drawAxes = (chart, svg, width, height, xRange, yRange, x, y, log) => {
		const bottom = height - BOTTOM, time = settings.x === "time";
		for (const t of log ? logTicks(...yRange) : ticks(...yRange, 4)) {
			if ((chart.world || chart.ranks) && t !== Math.round(t))
				continue;
			element("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: px(y(t)), y2: px(y(t))}, svg);
			element("text", {x: LEFT - 6, y: px(y(t) + 4), "text-anchor": "end"}, svg, number(t));
		}
		element("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom}, svg);
		for (const t of ticks(...xRange, Math.max(2, Math.floor(width / 110)), time ? TIMES : null)) {
			if (!time && t !== Math.round(t))
				continue;
			upright(svg, "axis", x(t), bottom, bottom + 4);
			element("text", {x: px(x(t)), y: height - 5, "text-anchor": "middle"}, svg, time ? duration(t) : number(t));
		}
	};
	const draw = (chart, lines, parent, room) => {
		const section = element("section", {class: "chart", id: "chart-" + chart.id}, parent);
		const header = element("header", {}, section);
		element("h3", {}, header, chart.title);
		if (alone() && chart.curves && (lines.length > 1 || runs[0].data.curves[lines[0].name].min)) {
			const legend = element("span", {class: "legend"}, header);
			for (const {run, name, label, colour} of lines) {
				const entry = element("span", {}, legend);
				swatch("i", entry, colour);
				entry.append(label + (run.data.curves[name].min && name !== "validation" && !chart.stack ? " (mean, least to largest)" : ""));
			}
		}
		const readout = element("span", {class: "readout"}, header);
		const main = chart.id === "loss", columns = main ? 1 : Math.max(1, Math.min(options.columns || 1, Math.floor(room / 440)));
		if (main && options.columns)
			section.classList.add("main");
		const width = Math.max(280, (room - GAP * (columns - 1)) / columns - 22), height = main ? options.height || 300 : 150;
		const svg = element("svg", {viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": chart.title, tabindex: 0}, section);
		let log = settings.log && chart.log;
		const xRange = rangeX(), yRange = rangeY(chart, lines, log);
		log = log && yRange[0] > 0;
		const bottom = height - BOTTOM, map = log ? Math.log : v => v;
		const x = v => LEFT + (v - xRange[0]) / (xRange[1] - xRange[0]) * (width - LEFT - RIGHT);
		const y = v => bottom - Math.max(0, (map(v) - map(yRange[0])) / (map(yRange[1]) - map(yRange[0]))) * (bottom - TOP);
		const yLog = v => log && v <= 0 ? bottom : y(v);
		drawAxes(chart, svg, width, height, xRange, yRange, x, y, log);
		drawEvents(chart, svg, x, bottom);
		if (chart.stack)
			drawLayers(svg, lines, x, y);
		else
			for (const line of lines)
				if (chart.world)
					drawWorld(svg, line, x, y);
				else if (chart.ranks)
					drawRanks(svg, line, x, y);
				else
					drawCurve(chart, svg, line, x, yLog, bottom);
		const cursor = upright(svg, "cursor", 0, TOP, bottom);
		const over = element("rect", {x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: bottom - TOP, fill: "transparent"});
		svg.insertBefore(over, svg.firstChild);
		svg.addEventListener("mousemove", event => {
			const box = svg.getBoundingClientRect();
			const at = (event.clientX - box.left) / box.width * width;
			point(xRange[0] + (at - LEFT) / (width - LEFT - RIGHT) * (xRange[1] - xRange[0]));
		});
		svg.addEventListener("mouseleave", () => point(null));
		svg.addEventListener("blur", () => point(null));
		svg.addEventListener("keydown", event => {
			const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
			if (!by)
				return;
			event.preventDefault();
			point(Math.min(Math.max((pointed === null ? xRange[1] : pointed) + by * (xRange[1] - xRange[0]) / 100, xRange[0]), xRange[1]));
		});
		drawn.push({chart, lines, readout, cursor, x});
	};

	// --- what stands under the pointer ---
	const indexAt = (run, value) => {
		let low = 0;
		for (let high = count(run); low < high;) {
			const middle = (low + high) >> 1;
			if (xOf(run, middle) <= value)
				low = middle + 1;
			else
				high = middle;
		}
		return Math.max(low - 1, 0);
	};
	const textAt = (chart, {run, name, label}, i) => {
		const {curves, worlds} = run.data;
		if (chart.world) {
			const world = worlds.filter(w => w.at_ms <= curves.at_ms[i]).pop();
			return world ? world.world + " workers, epoch " + world.epoch : "no epoch";
		}
		if (chart.ranks)
			return curves.slowest[i] === null ? "not measured" : "rank " + curves.slowest[i];
		const c = curves[name], scale = v => v === null ? v : v * (chart.scale || 1);
		if (name === "validation" && c.mean[i] === null)
			return null;
		return label + " " + number(scale(c.mean[i])) +
			(c.min && c.min[i] !== c.max[i] && alone() ? " (" + number(scale(c.min[i])) + " to " + number(scale(c.max[i])) + ")" : "");
	};
	const point = value => {
		pointed = runs.some(count) ? value : null;
		for (const {chart, lines, readout, cursor, x} of drawn) {
			cursor.style.visibility = pointed === null ? "hidden" : "visible";
			readout.textContent = "";
			const of = lines.filter(({run}) => count(run) && (alone() || value <= xLast(run)));
			if (pointed === null || !of.length)
				continue;
			const first = of[0].run, i = indexAt(first, value), {curves} = first.data;
			cursor.setAttribute("x1", x(alone() ? xOf(first, i) : value));
			cursor.setAttribute("x2", cursor.getAttribute("x1"));
			const steps = curves.step[i] === curves.last_step[i] ? "step " + curves.step[i] : "steps " + curves.step[i] + " to " + curves.last_step[i];
			const parts = alone() || settings.x === "step" ? [steps] : settings.x === "time" ? [duration(value)] : [number(value) + " tokens"];
			if (alone())
				parts.push(duration(curves.at_ms[i]));
			parts.push(...of.map(line => textAt(chart, line, indexAt(line.run, value))).filter(text => text !== null));
			readout.textContent = parts.join(" · ");
		}
	};

	// --- controls ---
	const redraw = () => {
		const part = document.createDocumentFragment(), focused = drawn.findIndex(d => d.cursor.parentNode === document.activeElement);
		width = root.clientWidth;
		drawn = [];
		for (const chart of options.ids ? options.ids.map(id => CHARTS.find(c => c.id === id)) : CHARTS) {
			const lines = linesOf(chart);
			if (lines.length)
				draw(chart, lines, part, width);
		}
		if (!runs.some(count))
			element("p", {class: "none"}, part, "No step has been reported.");
		root.replaceChildren(part);
		if (focused >= 0 && drawn[focused])
			drawn[focused].cursor.parentNode.focus({preventScroll: true});
		point(pointed);
	};
	const box = (type, text, on, change, colour) => {
		const label = element("label", {}, controls);
		const input = element("input", {type, name: type === "radio" ? group : ""}, label);
		input.checked = on;
		input.addEventListener("change", () => { change(input.checked); redraw(); });
		if (colour)
			swatch("span", label, colour, "swatch");
		return label.appendChild(document.createTextNode(" " + text));
	};
	const axis = (x, text) => box("radio", text, settings.x === x, () => {
		settings.x = x;
		pointed = null;
	});
	const kinds = new Map();
	let tokens = false;
	axis("step", "by step");
	axis("time", "by time");
	const update = now => {
		runs = now;
		if (!tokens && runs.length && runs.every(({data}) => data.curves.tokens)) {
			axis("tokens", "by tokens");
			tokens = true;
		}
		if (!kinds.has("log"))
			kinds.set("log", box("checkbox", "log scale", settings.log, on => { settings.log = on; }));
		for (const [kind, label] of KINDS) {
			const n = runs.reduce((sum, {data}) => sum + data.events.filter(e => e.kind === kind).length, 0);
			const text = label + " (" + n + ")";
			if (kinds.has(kind))
				kinds.get(kind).textContent = " " + text;
			else if (n)
				kinds.set(kind, box("checkbox", text, settings.kinds.has(kind),
					on => { settings.kinds[on ? "add" : "delete"](kind); }, "var(--" + kind + ")"));
		}
		redraw();
	};
	const observer = new ResizeObserver(() => {
		if (root.clientWidth !== width && root.clientWidth > 0)
			redraw();
	});
	observer.observe(root);
	return {update, close: () => observer.disconnect()};
};
