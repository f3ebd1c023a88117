// SPDX-License-Identifier: Apache-2.0
// report.js - draws the curves of a page that `titanctl report` writes, from the JSON beside it. Text only ever becomes a
// text node.
"use strict";
(() => {
    const data = JSON.parse(document.getElementById("data").textContent);
    const curves = data.curves, n = curves.step.length;
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
    const LEFT = 62, RIGHT = 14, TOP = 8, BOTTOM = 22;
    const settings = {time: false, log: false, kinds: new Set(["loss", "recovery", "resize"])};
    const root = document.getElementById("charts");

    const element = (name, attributes, parent, text) => {
        const svg = ["svg", "g", "path", "line", "text", "rect", "circle", "title"].includes(name);
        const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
        for (const [key, value] of Object.entries(attributes || {}))
            e.setAttribute(key, value);
        if (text !== undefined)
            e.textContent = text;
        if (parent)
            parent.appendChild(e);
        return e;
    };

    // --- numbers ------------------------------------------------------------------------------------------------------
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
    const duration = ms => {
        const s = Math.abs(ms) / 1000, sign = ms < 0 ? "-" : "";
        const pair = (count, of, unit, part) => sign + Math.floor(count / of) + unit + " " + count % of + part;
        if (s < 59.95)
            return sign + +s.toPrecision(3) + " s";
        if (s < 3599.5)
            return pair(Math.round(s), 60, "m", "s");
        if (s < 86370)
            return pair(Math.round(s / 60), 60, "h", "m");
        return pair(Math.round(s / 3600), 24, "d", "h");
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

    // --- the axis that all charts share ---------------------------------------------------------------------------------
    const xOf = i => settings.time ? curves.at_ms[i] : curves.step[i];
    // The step that was trained at a time; between two, its part of the way.
    const stepAt = ms => {
        if (n === 0 || ms <= curves.at_ms[0])
            return n ? curves.step[0] : 0;
        let low = 0, high = n;
        while (high - low > 1) {
            const middle = (low + high) >> 1;
            if (curves.at_ms[middle] <= ms)
                low = middle;
            else
                high = middle;
        }
        if (low === n - 1)
            return curves.last_step[n - 1];
        const part = (ms - curves.at_ms[low]) / (curves.at_ms[low + 1] - curves.at_ms[low] || 1);
        return curves.step[low] + part * (curves.step[low + 1] - curves.step[low]);
    };
    const xOfTime = ms => settings.time ? ms : stepAt(ms);
    const rangeX = () => {
        const last = n ? curves.last_step[n - 1] : 1;
        if (!settings.time)
            return [n ? curves.step[0] : 0, Math.max(last, (n ? curves.step[0] : 0) + 1)];
        return [0, Math.max(data.until_ms, n ? curves.at_ms[n - 1] : 0, 1)];
    };

    // --- a chart --------------------------------------------------------------------------------------------------------
    const shown = chart => {
        if (chart.world)
            return data.worlds.length > 0;
        if (chart.ranks)
            return Boolean(curves.slowest);
        chart.have = chart.curves.filter(([name]) => curves[name]);
        return chart.have.some(([name]) => curves[name].mean.some(v => chart.some ? v > 0 : true));
    };
    const rangeY = (chart, log) => {
        let min = Infinity, max = -Infinity;
        const see = v => {
            if (v === null || (log && v <= 0))
                return;
            min = Math.min(min, v);
            max = Math.max(max, v);
        };
        if (chart.world)
            data.worlds.forEach(w => see(w.world));
        else if (chart.ranks)
            curves.slowest.forEach(see);
        else if (chart.stack)
            layers(chart).forEach(layer => layer.top.forEach(see));
        else
            for (const [name] of chart.have)
                for (const values of [curves[name].mean, curves[name].min || [], curves[name].max || []])
                    values.forEach(v => see(v === null ? null : v * (chart.scale || 1)));
        if (min > max)
            return [0, 1];
        if (log)
            return min === max ? [min / 2, max * 2] : [min, max];
        if (chart.zero)
            min = Math.min(min, 0);
        const room = (max - min) * 0.04 || Math.abs(max) * 0.1 || 1;
        return [min === 0 ? 0 : min - room, max + room];
    };
    // One curve's means on top of the others', of the ranges that were measured.
    const layers = chart => {
        const have = chart.have.map(([name]) => curves[name].mean);
        const at = curves.step.map((_, i) => i).filter(i => have.every(mean => mean[i] !== null));
        let low = at.map(() => 0);
        return have.map(mean => {
            const layer = {at, low, top: low.map((v, k) => v + mean[at[k]])};
            low = layer.top;
            return layer;
        });
    };
    const pathOf = (xs, ys, broken) => {
        let path = "", open = false;
        for (let i = 0; i < xs.length; i++) {
            if (ys[i] === null) {
                open = false;
                continue;
            }
            path += (open ? "L" : "M") + xs[i].toFixed(1) + " " + ys[i].toFixed(1);
            open = !(broken && broken[i]);
        }
        return path;
    };
    const dots = (parent, xs, ys, colour) => {
        const some = ys.map((y, i) => i).filter(i => ys[i] !== null);
        if (some.length <= 60)
            some.forEach(i => element("circle", {cx: xs[i].toFixed(1), cy: ys[i].toFixed(1), r: 2.2, fill: colour}, parent));
    };
    const drawCurve = (chart, svg, name, label, colour, x, y, bottom) => {
        const c = curves[name], scale = chart.scale || 1;
        const place = v => v === null ? null : y(v * scale);
        const xs = c.mean.map((_, i) => x(xOf(i)));
        // A validation now and then is a line through what there is; a gap in it says nothing.
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
            if (bad && !sparse) {
                const mark = element("line", {class: "bad", x1: xs[i], x2: xs[i], y1: bottom - 7, y2: bottom}, svg);
                element("title", {}, mark, label + ": " + bad + " not finite");
            }
        });
    };
    const drawLayers = (chart, svg, x, y) => {
        layers(chart).forEach((layer, k) => {
            const xs = layer.at.map(i => x(xOf(i))), colour = "var(--c" + k + ")";
            const path = pathOf(xs, layer.top.map(y)) + pathOf([...xs].reverse(), layer.low.map(y).reverse()).replace("M", "L");
            element("path", {class: "area", "data-curve": chart.have[k][0], d: path + "Z", fill: colour, stroke: colour}, svg);
        });
    };
    // A dash over ranges beside each other that have the same rank; what was not measured between them is taken for it.
    const drawRanks = (svg, x, y) => {
        const at = curves.step.map((_, i) => i).filter(i => curves.slowest[i] !== null);
        let path = "";
        for (let k = 0, to; k < at.length; k = to) {
            const rank = curves.slowest[at[k]], from = x(xOf(at[k]));
            for (to = k + 1; to < at.length && curves.slowest[at[to]] === rank;)
                to++;
            const until = x(xOf(at[Math.min(to, at.length - 1)]));
            path += "M" + from.toFixed(1) + " " + y(rank).toFixed(1) + "H" + Math.max(until, from + 2).toFixed(1);
        }
        element("path", {class: "curve ranks", "data-curve": "slowest", d: path, stroke: "var(--c1)"}, svg);
    };
    const drawWorld = (svg, x, y) => {
        let path = "";
        data.worlds.forEach((w, i) => {
            const at = x(xOfTime(w.at_ms)).toFixed(1);
            path += i ? "H" + at + "V" + y(w.world).toFixed(1) : "M" + at + " " + y(w.world).toFixed(1);
        });
        element("path", {class: "curve", "data-curve": "world", d: path + "H" + x(rangeX()[1]).toFixed(1), stroke: "var(--c0)"}, svg);
    };
    // One mark of a kind to a pixel: a thousand losses are no wall.
    const drawEvents = (chart, svg, x, bottom) => {
        const taken = new Set();
        for (const e of data.events) {
            const at = x(xOfTime(e.at_ms)), key = e.kind + Math.round(at);
            if (!settings.kinds.has(e.kind) || taken.has(key) || at < LEFT - 1)
                continue;
            taken.add(key);
            const mark = element("line", {class: "event", "data-kind": e.kind, x1: at.toFixed(1), x2: at.toFixed(1), y1: TOP, y2: bottom,
                stroke: "var(--" + e.kind + ")"}, svg);
            element("title", {}, mark, e.message || e.type);
        }
        for (const c of chart.checkpoints ? data.checkpoints : []) {
            const at = x(xOfTime(c.at_ms)), key = "c" + Math.round(at);
            if (taken.has(key))
                continue;
            taken.add(key);
            const mark = element("line", {class: "checkpoint", x1: at.toFixed(1), x2: at.toFixed(1), y1: bottom - 4, y2: bottom + 2}, svg);
            element("title", {}, mark, "checkpoint of step " + c.step);
        }
    };
    const drawAxes = (chart, svg, width, height, xRange, yRange, x, y, log) => {
        const bottom = height - BOTTOM;
        for (const t of log ? logTicks(...yRange) : ticks(...yRange, 4)) {
            if ((chart.world || chart.ranks) && t !== Math.round(t))
                continue;
            element("line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(t).toFixed(1), y2: y(t).toFixed(1)}, svg);
            element("text", {x: LEFT - 6, y: (y(t) + 4).toFixed(1), "text-anchor": "end"}, svg, number(t));
        }
        element("line", {class: "axis", x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom}, svg);
        for (const t of ticks(...xRange, Math.max(2, Math.floor(width / 110)), settings.time ? TIMES : null)) {
            if (!settings.time && t !== Math.round(t))
                continue;
            element("line", {class: "axis", x1: x(t).toFixed(1), x2: x(t).toFixed(1), y1: bottom, y2: bottom + 4}, svg);
            element("text", {x: x(t).toFixed(1), y: height - 5, "text-anchor": "middle"}, svg, settings.time ? duration(t) : number(t));
        }
    };
    const draw = chart => {
        const section = element("section", {class: "chart", id: "chart-" + chart.id}, root);
        const header = element("header", {}, section);
        element("h3", {}, header, chart.title);
        const have = chart.world || chart.ranks ? [] : chart.have;
        if (have.length > 1 || (have.length && curves[have[0][0]].min)) {
            const legend = element("span", {class: "legend"}, header);
            have.forEach(([name, label], i) => {
                const entry = element("span", {}, legend);
                element("i", {style: "background: var(--c" + i + ")"}, entry);
                entry.append(label + (curves[name].min && name !== "validation" && !chart.stack ? " (mean, least to largest)" : ""));
            });
        }
        chart.readout = element("span", {class: "readout"}, header);
        const width = Math.max(320, root.clientWidth - 22), height = chart.id === "loss" ? 300 : 150;
        const svg = element("svg", {viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": chart.title}, section);
        let log = settings.log && chart.log;
        const xRange = rangeX(), yRange = rangeY(chart, log);
        log = log && yRange[0] > 0;
        const bottom = height - BOTTOM, map = log ? Math.log : v => v;
        const x = v => LEFT + (v - xRange[0]) / (xRange[1] - xRange[0]) * (width - LEFT - RIGHT);
        const y = v => bottom - Math.max(0, (map(v) - map(yRange[0])) / (map(yRange[1]) - map(yRange[0]))) * (bottom - TOP);
        const yLog = v => log && v <= 0 ? bottom : y(v);
        drawAxes(chart, svg, width, height, xRange, yRange, x, y, log);
        drawEvents(chart, svg, x, bottom);
        if (chart.world)
            drawWorld(svg, x, y);
        else if (chart.ranks)
            drawRanks(svg, x, y);
        else if (chart.stack)
            drawLayers(chart, svg, x, y);
        else
            have.forEach(([name, label], i) => drawCurve(chart, svg, name, label, "var(--c" + i + ")", x, yLog, bottom));
        chart.cursor = element("line", {class: "cursor", y1: TOP, y2: bottom, x1: 0, x2: 0}, svg);
        chart.x = x;
        const over = element("rect", {x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: bottom - TOP, fill: "transparent"});
        svg.insertBefore(over, svg.firstChild);
        svg.addEventListener("mousemove", event => {
            const box = svg.getBoundingClientRect();
            const at = (event.clientX - box.left) / box.width * width;
            point(xRange[0] + (at - LEFT) / (width - LEFT - RIGHT) * (xRange[1] - xRange[0]));
        });
        svg.addEventListener("mouseleave", () => point(null));
    };

    // --- what stands under the pointer ----------------------------------------------------------------------------------
    const point = value => {
        let i = 0;
        for (let low = 0, high = n; value !== null && low < high;) {
            i = (low + high) >> 1;
            if (xOf(i) <= value)
                low = i + 1;
            else
                high = i;
        }
        for (const chart of CHARTS.filter(c => c.cursor)) {
            chart.cursor.style.visibility = value === null || n === 0 ? "hidden" : "visible";
            chart.readout.textContent = "";
            if (value === null || n === 0)
                continue;
            const at = chart.x(xOf(i));
            chart.cursor.setAttribute("x1", at);
            chart.cursor.setAttribute("x2", at);
            const steps = curves.step[i] === curves.last_step[i] ? "step " + curves.step[i]
                : "steps " + curves.step[i] + " to " + curves.last_step[i];
            const parts = [steps, duration(curves.at_ms[i])];
            if (chart.world) {
                const world = data.worlds.filter(w => w.at_ms <= curves.at_ms[i]).pop();
                parts.push(world ? world.world + " workers, epoch " + world.epoch : "no epoch");
            } else if (chart.ranks) {
                parts.push(curves.slowest[i] === null ? "not measured" : "rank " + curves.slowest[i]);
            } else {
                for (const [name, label] of chart.have) {
                    const c = curves[name], scale = v => v === null ? v : v * (chart.scale || 1);
                    if (name === "validation" && c.mean[i] === null)
                        continue;
                    parts.push(label + " " + number(scale(c.mean[i])) +
                        (c.min && c.min[i] !== c.max[i] ? " (" + number(scale(c.min[i])) + " to " + number(scale(c.max[i])) + ")" : ""));
                }
            }
            chart.readout.textContent = parts.join(" · ");
        }
    };

    // --- controls ---------------------------------------------------------------------------------------------------------
    const redraw = () => {
        root.textContent = "";
        for (const chart of CHARTS) {
            chart.cursor = null;
            if (shown(chart))
                draw(chart);
        }
        if (n === 0)
            element("p", {class: "none"}, root, "No step has been reported.");
    };
    const box = (parent, type, text, on, change, colour) => {
        const label = element("label", {}, parent);
        const input = element("input", {type, name: type === "radio" ? "x" : ""}, label);
        input.checked = on;
        input.addEventListener("change", () => { change(input.checked); redraw(); });
        if (colour)
            element("span", {class: "swatch", style: "background: " + colour}, label);
        label.append(" " + text);
    };
    const controls = document.getElementById("controls");
    box(controls, "radio", "by step", true, () => { settings.time = false; });
    box(controls, "radio", "by time", false, () => { settings.time = true; });
    box(controls, "checkbox", "log scale", false, on => { settings.log = on; });
    for (const [kind, label] of KINDS) {
        const count = data.events.filter(e => e.kind === kind).length;
        if (count)
            box(controls, "checkbox", label + " (" + count + ")", settings.kinds.has(kind),
                on => { settings.kinds[on ? "add" : "delete"](kind); }, "var(--" + kind + ")");
    }
    let width = 0;
    new ResizeObserver(() => {
        if (root.clientWidth !== width && root.clientWidth > 0) {
            width = root.clientWidth;
            redraw();
        }
    }).observe(root);
    width = root.clientWidth;
    redraw();
})();
