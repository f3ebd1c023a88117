// SPDX-License-Identifier: Apache-2.0
// titan.js - the coordinator's page: cluster, job, comparison and node, kept up to date by the stream of events. Names and
// messages are foreign text and only ever become text nodes. chart.js stands before it in the same file.
const MOST_COMPARED = 8, MOST_EVENTS = 100, GAP_MS = 1000, BACKOFF_MS = 30000;
const ENDED = ["COMPLETED", "FAILED", "CANCELLED"], ACTIVE = ["FORMING", "RUNNING", "RECOVERING", "RESIZING", "CANCELLING"];
const $ = id => document.getElementById(id);

// --- nodes of the page ---
// An element. "key" tells it from its siblings, on... is a handler, other properties are attributes.
const h = (name, properties = {}, ...children) => {
	const e = document.createElement(name);
	for (const [key, value] of Object.entries(properties))
		if (key.startsWith("on") || key === "key")
			e[key] = value;
		else if (value || value === 0 || value === "")
			e.setAttribute(key, value);
	e.append(...children.flat(9).filter(c => c || c === 0));
	return e;
};
// Makes the children of parent those of fresh and keeps the nodes that stay: focus, selection and scroll survive.
const patch = (parent, fresh) => {
	const keyed = new Map([...parent.childNodes].map(c => [c.key, c]));
	let at = parent.firstChild;
	for (const want of fresh) {
		const old = want.key === undefined ? at : keyed.get(want.key);
		if (old && old !== at)
			parent.insertBefore(old, at);
		if (!old || old.nodeName !== want.nodeName || old.key !== want.key) {
			parent.insertBefore(want, at);
			continue;
		}
		at = old.nextSibling;
		if (old === want)
			continue;
		if (old.nodeType === Node.TEXT_NODE) {
			if (old.data !== want.data)
				old.data = want.data;
			continue;
		}
		for (const {name} of [...old.attributes])
			if (!want.hasAttribute(name) && name !== "open")
				old.removeAttribute(name);
		for (const {name, value} of want.attributes)
			if (old.getAttribute(name) !== value)
				old.setAttribute(name, value);
		for (const handler of ["onclick", "onchange", "ontoggle"])
			old[handler] = want[handler];
		if (old.type === "checkbox")
			old.checked = want.hasAttribute("checked");
		patch(old, [...want.childNodes]);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
};
const put = (...nodes) => patch($("main"), nodes.flat(9).filter(Boolean));

// --- text as titanctl has it ---
const fixed = (v, digits, unit = "") => typeof v === "number" ? v.toFixed(digits) + unit : "-";
const percent = v => v > 0 ? fixed(100 * v, 1, " %") : "-";
const scaled = (v, base, limit, units) => {
	let unit = 0;
	for (; v >= limit && unit < units.length - 1; unit++)
		v /= base;
	return [v, units[unit], unit];
};
const count = value => {
	const [v, unit, n] = scaled(value, 1000, 999.5, ["", "k", "M", "B", "T", "P", "E"]);
	return v.toFixed(v >= 99.95 || (n === 0 && Number.isInteger(v)) ? 0 : v >= 9.995 ? 1 : 2) + unit;
};
const bytes = value => {
	const [v, unit, n] = scaled(value, 1024, 1023.95, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
	return v.toFixed(n ? 1 : 0) + " " + unit;
};
const seconds = ms => duration(1000 * Math.floor(Math.max(0, ms) / 1000));
const since = at => at ? seconds(Date.now() - Date.parse(at)) : "-";
const ago = at => at ? h("time", {title: at}, Date.now() - Date.parse(at) < 1000 ? "now" : since(at) + " ago") : "-";
const clock = at => new Date(at).toISOString().slice(11, 19) + "Z";
const plural = (n, noun) => n + " " + noun + (n === 1 ? "" : "s");

// --- the server ---
const failure = (status, message) => Object.assign(new Error(message), {status});
const get = async (path, query = {}, signal) => {
	const token = sessionStorage.getItem("token"), search = new URLSearchParams();
	for (const [key, value] of Object.entries(query))
		[value].flat().forEach(v => search.append(key, v));
	const answer = await fetch("api/v1/" + path + "?" + search, {signal, cache: "no-store", headers: token ? {Authorization: "Bearer " + token} : {}})
		.catch(() => { throw failure(0, "The coordinator is not reached."); });
	if (answer.ok)
		return answer;
	const said = await answer.json().catch(() => ({})), why = said.error || "The answer is HTTP " + answer.status + ".";
	if (answer.status === 401 && token === sessionStorage.getItem("token"))
		askToken(token && why);
	throw failure(answer.status, (answer.status === 403 ? "Not permitted: " : "") + why);
};
const ask = async (method, query) => (await get(method, query)).json();

// --- a token ---
let locked = false;
const askToken = why => {
	if (locked)
		return;
	locked = true;
	halt();
	setLink("lost", "a token is needed");
	const input = h("input", {id: "token", type: "password", autocomplete: "off", required: "", "aria-label": "Token"});
	const form = h("form", {id: "login"}, h("h1", {}, "Who are you?"),
		h("p", {class: "none"}, "The coordinator shows jobs to people whom it knows. ", h("code", {}, "titanctl token create NAME --role user"),
			" makes a token. It stays in this tab."), why && wrong(why), input, h("button", {}, "Go on"));
	form.onsubmit = event => {
		event.preventDefault();
		sessionStorage.setItem("token", input.value.trim());
		locked = false;
		open();
	};
	$("main").replaceChildren(form);
	input.focus();
};

// --- the stream of events ---
let last = null, events = [], stream = null, backoff = 0, lost = null, timer = null;
const setLink = (state, text) => {
	$("link").className = state;
	$("link").textContent = text;
};
// Reads blocks of lines that an empty line ends; returns true if the stream is over for good. A comment wakes the view, too.
const read = async (body, signal) => {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const {value, done} = await reader.read();
		if (done || signal.aborted)
			return false;
		rest += value;
		for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
			const fields = Object.fromEntries(rest.slice(0, end).split("\n").map(line => line.split(/: ?(.*)/s)));
			wake();
			if (fields.event === "end" || fields.event === "error")
				return fields.event === "end";
			if (!fields.data)
				continue;
			const event = JSON.parse(fields.data);
			last = event.id;
			events.unshift(event);
			events.length = Math.min(events.length, MOST_EVENTS);
		}
	}
};
const follow = async () => {
	const {signal} = stream = new AbortController();
	const from = last !== null ? {after: last} : view.job ? {} : {last: 100};
	try {
		const answer = await get("events", view.job ? {...from, job_id: view.job} : from, signal);
		backoff = 0;
		lost = null;
		setLink("live", "live");
		wake();
		if (await read(answer.body, signal)) {
			setLink("live", "the job has ended");
			return;
		}
	} catch (e) {
		if ([400, 403, 404].includes(e.status) && !signal.aborted) {
			setLink("lost", "no events are shown");
			return;
		}
	}
	if (signal.aborted || locked)
		return;
	lost = lost || Date.now();
	backoff = Math.min(backoff ? 2 * backoff : 500, BACKOFF_MS);
	setLink("lost", "coordinator not reached since " + clock(lost));
	timer = setTimeout(follow, backoff * (0.75 + Math.random() / 2));
};
const halt = () => {
	clearTimeout(timer);
	clearTimeout(due);
	due = null;
	if (stream)
		stream.abort();
	stream = null;
};
const go = () => {
	halt();
	if (!document.hidden && !locked)
		follow();
};

// --- views ---
// A view is {title, job?, load(): fetches, draw(): puts into main, close?()}. Events wake it, at most once a second.
let view = null, due = null, busy = false, again = false;
const refresh = async () => {
	const now = view;
	due = null;
	busy = true;
	again = false;
	const error = await now.load().then(() => null, e => e);
	busy = false;
	if (now === view && !locked) {
		if (!error)
			now.draw();
		else if (error.status || !now.drawn)
			put(wrong(error.message), error.status === 403 && h("button", {onclick: () => askToken()}, "Another token"));
		now.drawn = !error || (now.drawn && !error.status);
	}
	if (again || now !== view)
		wake();
};
const wake = () => {
	if (busy)
		again = true;
	else if (!due && !document.hidden && !locked)
		due = setTimeout(refresh, view.drawn ? GAP_MS : 0);
};

// --- parts of views ---
const wrong = text => h("p", {class: "wrong", role: "alert"}, text);
const none = text => h("p", {class: "none"}, text);
const pill = state => h("span", {class: "pill " + state}, state);
const small = (...text) => h("small", {}, " ", text);
const link = (to, text, more) => h("a", {href: "#/" + to, ...more}, text);
const jobLink = (id, text = id) => link("job/" + id, text);
const nodeLink = name => link("node/" + encodeURIComponent(name), name);
const section = (title, ...children) => h("section", {"aria-label": title, key: title}, h("h2", {}, title), children);
const facts = list => h("dl", {class: "facts"}, list.filter(Boolean).map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
// heads: "NAME>" is a column of numbers. A row is its key, and the cells.
const table = (id, heads, rows, empty) => rows.length === 0 ? none(empty) : h("div", {class: "scroll"}, h("table", {id},
	h("thead", {}, h("tr", {}, heads.map(t => h("th", {class: t.endsWith(">") && "n", scope: "col"}, t.replace(">", ""))))),
	h("tbody", {}, rows.map(([key, ...cells]) => h("tr", {key}, cells.map((c, i) =>
		h("td", {class: heads[i].endsWith(">") ? "n" : heads[i] === "Reason" || heads[i] === "Event" ? "text" : "", "data-head": heads[i].replace(">", "")}, c)))))));
const kindOf = ({type, detail: d}) => /lost|failed|stalled|revoked|quarantined$/.test(type) || (d && (d.to === "failed" || (type === "worker.exited" && !d.asked && (d.exit_code || d.signal)))) ? "loss"
	: /waiting|squeezed|preempted|refused|straggler|drain|unfit|window/.test(type) ? "warning" : (/^(recovery|resize)|state$|ready$/.exec(type) || [""])[0].replace(/ready/, "state");
const feed = (list, empty) => table("events", ["Time", "Type", "Event"], list.slice(0, MOST_EVENTS).map((e, i) => [e.id || i, h("time", {title: new Date(e.at).toISOString()}, clock(e.at)),
	h("span", {class: "kind-" + (e.kind || kindOf(e))}, e.type),
	[e.job_id && view.job !== e.job_id ? [jobLink(e.job_id, "job " + e.job_id), " "] : "", e.node ? [nodeLink(e.node), " "] : "", e.message]]), empty);

// Jobs that run beside each other have other colours, and keep them.
const colours = new Map();
const colourOf = id => {
	if (!colours.has(id)) {
		const newest = [...colours.values()].slice(-7);
		let free = id % 8;
		while (newest.includes(free))
			free = (free + 1) % 8;
		colours.set(id, free);
	}
	return colours.get(id);
};
const key = id => h("span", {class: "key j" + colourOf(id)});
const bar = j => h("span", {class: "step"}, h("progress", {max: j.steps || 1, value: j.step, "aria-label": "steps"}), j.step + " / " + j.steps);

const selected = new Set();
const chosen = j => h("input", {type: "checkbox", "aria-label": "compare job " + j.id, checked: selected.has(j.id) && "checked",
	disabled: !selected.has(j.id) && selected.size === MOST_COMPARED && "disabled",
	onchange: event => {
		selected[event.target.checked ? "add" : "delete"](j.id);
		view.draw();
	}});
const COLUMNS = {
	Job: j => [chosen(j), ACTIVE.includes(j.state) && key(j.id), jobLink(j.id)],
	Name: j => jobLink(j.id, h("span", {class: "name", title: j.name}, j.name)),
	State: j => pill(j.state),
	Step: bar,
	"Loss>": j => j.step > 0 ? fixed(j.loss, 4) : "-",
	"Validation>": j => j.validation ? fixed(j.validation.loss, 4) : "-",
	"Tokens/s>": j => j.tokens_per_second > 0 ? count(j.tokens_per_second) : "-",
	"MFU>": j => percent(j.mfu),
	"Workers>": j => j.state !== "PENDING" ? j.world_size : j.min_workers === j.max_workers ? j.max_workers : j.min_workers + " to " + j.max_workers,
	"For>": j => since(j.started_at || j.submitted_at),
	"Waits>": j => since(j.submitted_at),
	"Ended>": j => ago(j.finished_at),
	"Priority>": j => j.priority,
	User: j => j.user,
	Reason: j => j.reason,
};
const jobTable = (id, heads, {jobs, error}, empty) => error ? wrong(error) : table(id, heads, jobs.map(j => [j.id, ...heads.map(t => COLUMNS[t](j))]), empty);

// --- slots ---
const slotsOf = node => {
	const rest = node.state === "ready" ? "free" : node.state === "lost" ? "gone" : "out", out = [];
	const slot = (kind, sign, title) => out.push(h("b", {class: "slot " + kind, title}, sign));
	const taken = (id, title) => out.push(link("job/" + id, id, {class: "slot j" + colourOf(id), title}));
	const empty = title => slot(rest, {free: "", gone: "×", out: "–"}[rest], title + (rest === "free" ? "free" : node.state));
	if (node.gpus.length === node.slots)
		for (const g of node.gpus) {
			const title = "slot " + g.slot + ": ";
			if (g.job_id)
				taken(g.job_id, title + "job " + g.job_id);
			else if (g.state === "quarantined")
				slot("bad", "!", title + g.state + (g.reason ? ": " + g.reason : ""));
			else
				empty(title);
		}
	else {
		for (const {job_id, workers} of node.jobs)
			for (let i = 0; i < workers; i++)
				taken(job_id, "job " + job_id);
		while (out.length < node.slots_used)
			slot("other", "?", "in use");
		while (out.length < node.slots)
			empty("");
	}
	return h("span", {class: "strip", role: "group", "aria-label": node.slots_used + " of " + node.slots + " slots in use"}, out);
};
const nodeState = n => h("span", {class: "state " + n.state}, n.state);

// --- the cluster ---
const cluster = () => {
	let nodes, active, queue, ended, version;
	// A caller who may not see jobs has the nodes still.
	const jobs = (states, size, more) => ask("ListJobs", {states, page_size: size, ...more}).catch(e => {
		if (e.status !== 403)
			throw e;
		return {jobs: [], total: 0, error: e.message};
	});
	return {title: "Cluster",
		load: async () => {
			[{nodes}, active, queue, ended, version] = await Promise.all([ask("ListNodes"), jobs(ACTIVE, 200), jobs("PENDING", 100, {count: true}), jobs(ENDED, 15), ask("Version")]);
			nodes.sort((a, b) => a.name < b.name ? -1 : 1);
			active.jobs.concat(ended.jobs).map(j => j.id).sort((a, b) => a - b).forEach(colourOf);
			queue.jobs.sort((a, b) => b.priority - a.priority || a.id - b.id);
		},
		draw: () => {
			const sum = f => nodes.reduce((s, n) => s + f(n), 0), out = nodes.filter(n => n.state !== "ready").length;
			put(facts([["nodes", nodes.length, out > 0 && small(out, " not ready")], ["slots in use", sum(n => n.slots_used), small("of ", sum(n => n.slots))],
				["jobs running", active.jobs.length], ["jobs waiting", queue.total > 20000 ? "> 20000" : queue.total],
				["coordinator", "up " + since(version.started_at), small(version.version.split(" ")[0])]]),
			section("Slots", nodes.length ? h("div", {class: "nodes"}, nodes.map(n => h("div", {class: "node", key: n.name},
				h("span", {class: "label"}, nodeLink(n.name), " ", nodeState(n)), slotsOf(n), n.reason && h("small", {class: "why"}, n.reason)))) : none("No node has registered.")),
			section("Running", jobTable("running", ["Job", "Name", "State", "Step", "Loss>", "Tokens/s>", "MFU>", "Workers>", "For>", "User", "Reason"], active, "No job runs.")),
			section("Queue", jobTable("queue", ["Job", "Name", "User", "Priority>", "Workers>", "Waits>", "Reason"], queue, "No job waits."),
				queue.total > queue.jobs.length && none("These are the " + queue.jobs.length + " newest of " + queue.total + ".")),
			section("Ended", jobTable("ended", ["Job", "Name", "State", "Step", "Loss>", "Ended>", "User", "Reason"], ended, "No job has ended.")),
			section("Events", feed(events, "No event yet.")),
			selected.size > 0 && h("p", {class: "float"}, link("compare/" + [...selected], "Compare " + plural(selected.size, "job"), {class: "button"}),
				h("button", {type: "button", onclick: () => { selected.clear(); view.draw(); }}, "Clear")));
		}};
};

// --- curves ---
// A job's curves as chart.js takes them: times since the job's begin.
const curvesOf = async ids => (await ask("curves", {job_id: ids, points: 600})).jobs.map(j => {
	if (!j.complete)
		wake();
	const begin = Math.min(...[j.curves.at[0], j.worlds[0] && j.worlds[0].at].filter(Boolean)), own = list => list.map(e => ({...e, at_ms: e.at - begin}));
	return {...j, curves: {...j.curves, at_ms: j.curves.at.map(at => at - begin)}, worlds: own(j.worlds), events: own(j.events), checkpoints: own(j.checkpoints),
		until_ms: Math.max(0, ...j.curves.at, ...j.worlds.map(w => w.at)) - begin};
});
const MAIN = ["loss", "grad_norm", "tokens", "mfu", "world"], MORE = CHARTS.map(c => c.id).filter(id => !MAIN.includes(id));
const picture = ids => {
	const controls = h("div", {class: "controls"}), root = h("div", {class: "charts"});
	return {nodes: [controls, root], ...showCharts(root, controls, {ids, columns: 2, height: 220})};
};
const asked = (label, button, done) => {
	const form = h("form", {class: "line"}, h("label", {}, label, " ", h("input", {type: "number", min: 1, name: "other", required: ""})), h("button", {}, button));
	form.onsubmit = event => {
		event.preventDefault();
		done(Number(form.elements.other.value));
	};
	return form;
};

// --- recipes ---
const recipeOf = async id => (await ask("GetRecipe", {job_id: id})).recipe;
const keysOf = text => {
	const keys = new Map();
	let part = "";
	for (const line of text.split("\n")) {
		const begin = /^\s*\[+([^\]]+)\]+\s*$/.exec(line), pair = /^\s*([\w.-]+)\s*=\s*(.*)$/.exec(line);
		if (begin)
			part = begin[1] + ".";
		else if (pair)
			keys.set(part + pair[1], pair[2]);
	}
	return keys;
};
const differences = (ids, recipes) => {
	const maps = recipes.map(keysOf), names = [...new Set(maps.flatMap(m => [...m.keys()]))].filter(k => new Set(maps.map(m => m.get(k))).size > 1);
	return table("differences", ["Key", ...ids.map(id => "job " + id)], names.map(k => [k, ...[k, ...maps.map(m => m.get(k) ?? "-")].map(t => h("code", {}, t))]), "The recipes are the same.");
};

// --- a job ---
const PARTS = [["compute", "compute_ms"], ["data (samples)", "data_ms"], ["communication that no computing hid", "communication_ms"], ["checkpoint", "checkpoint_ms"], ["waiting for stragglers", "straggler_ms"]];
const splitOf = run => {
	if (!run || !run.split)
		return none("Not measured.");
	const parts = PARTS.map(([name, field], i) => [name, run.split[field] || 0, i]), sum = parts.reduce((t, p) => t + p[1], 0) || 1;
	const line = h("div", {class: "bar", key: JSON.stringify(parts)}, parts.map(([name, ms, i]) => h("i", {class: "c" + i, title: name + " " + percent(ms / sum)})));
	[...line.children].forEach((e, i) => { e.style.flexGrow = parts[i][1] / sum; });
	return [line, table("split", ["Part", "ms a step>", "Share>"], parts.map(([name, ms, i]) => [i, [h("span", {class: "key c" + i}), name], fixed(ms, 1), fixed(100 * ms / sum, 1, " %")]))];
};
const job = id => {
	let j, run, checkpoints = [], recipe, logs, differ, more = false, reading = false;
	const why = {}, main = picture(MAIN), rest = picture(MORE);
	// A part that fails says why in its place, and the others are shown.
	const part = async (name, load) => {
		why[name] = null;
		await load().catch(e => {
			if (!e.status || e.status === 401)
				throw e;
			why[name] = e.message;
		});
	};
	const shown = (name, draw) => why[name] ? wrong(why[name]) : draw();
	const form = asked("Differences to job", "Show", async other => {
		await part("other", async () => { differ = differences([id, other], [recipe, await recipeOf(other)]); }).catch(() => {});
		self.draw();
	});
	const readLogs = async () => {
		if (reading)
			return;
		reading = true;
		await part("logs", async () => {
			const chunks = (await (await get("Logs", {job_id: id, tail_lines: 30})).text()).split("\n").filter(Boolean).map(line => JSON.parse(line));
			logs = chunks.map(({rank, data}) => data.trimEnd().split("\n").map(line => String(rank).padStart(3) + "  " + line).join("\n")).join("\n");
		}).catch(() => {});
		reading = false;
		if (view === self && self.drawn)
			self.draw();
	};
	const self = {title: "Job " + id, job: id,
		load: async () => {
			({job: j} = await ask("GetJob", {job_id: id}));
			await Promise.all([part("curves", async () => { [run] = await curvesOf([id]); }),
				part("checkpoints", async () => { ({checkpoints} = await ask("ListCheckpoints", {job_id: id})); }),
				recipe || part("recipe", async () => { recipe = await recipeOf(id); })]);
			readLogs();
		},
		draw: () => {
			const v = j.validation, budget = j.losses.map(l => l.cause + " " + l.count + " of " + l.budget).join(", "), from = j.started_at || j.submitted_at;
			const old = $("logs"), atEnd = !old || old.scrollTop + old.clientHeight > old.scrollHeight - 9;
			put(h("h1", {}, "Job " + id + ": " + j.name, " ", pill(j.state)),
				h("p", {class: "under"}, j.user && "of " + j.user + " · ", "submitted ", ago(j.submitted_at), j.finished_at && [" · ended ", ago(j.finished_at)], j.priority !== 0 && " · priority " + j.priority,
					j.labels.map(l => [" ", h("span", {class: "tag"}, l)]), " · ", link("compare/" + id, "compare"), j.reason && [h("br"), h("b", {id: "reason"}, j.reason)]),
				facts([["step", bar(j)], ["loss", COLUMNS["Loss>"](j)], v && ["validation loss", fixed(v.loss, 4), small("step ", v.step)], ["tokens/s", COLUMNS["Tokens/s>"](j)], j.mfu > 0 && ["MFU", percent(j.mfu)],
					["workers", j.world_size, small("of ", j.min_workers, " to ", j.max_workers)], ["epoch", j.epoch, small(budget || plural(j.restarts, "restart"))],
					[j.finished_at ? "took" : "since its start", seconds((j.finished_at ? Date.parse(j.finished_at) : Date.now()) - Date.parse(from))]]),
				section("Curves", shown("curves", () => main.nodes), h("details", {ontoggle: event => {
					more = event.target.open;
					if (more && run)
						rest.update([{data: run}]);
				}}, h("summary", {}, "More curves"), rest.nodes)),
				h("div", {class: "two", key: 1}, section("Where the time of a step went", splitOf(run)),
					section("Slowest ranks", table("ranks", ["Rank>", "Node", "Steps>", "Busy, ms>", "Others waited, ms>"],
						(run ? run.slowest : []).map(r => [r.rank, r.rank, r.node && nodeLink(r.node), r.steps + " of " + r.of, fixed(r.busy_ms, 1), fixed(r.waited_ms, 1)]), "No rank was waited for.")),
					section("Workers", table("workers", ["Node", "Workers>"], j.nodes.map(n => [n.node, nodeLink(n.node), n.workers]), "It has no workers now.")),
					section("Checkpoints", shown("checkpoints", () => table("checkpoints", ["Step>", "Size>", "Written>", "Workers>"],
						checkpoints.slice(0, 8).map(c => [c.step, c.step, bytes(c.bytes), ago(c.committed_at), c.world_size]), "None is written.")))),
				section("Logs", shown("logs", () => logs ? h("pre", {id: "logs", tabindex: 0}, logs) : none(logs === "" ? "Nothing was written." : "The nodes are asked."))),
				section("Recipe", shown("recipe", () => recipe && [form, shown("other", () => differ), h("details", {}, h("summary", {}, "The whole recipe"), h("pre", {id: "recipe"}, recipe))])),
				section("Events", feed(run ? run.events.toReversed() : [], "No event yet.")));
			if (atEnd && $("logs"))
				$("logs").scrollTop = $("logs").scrollHeight;
			if (run) {
				main.update([{data: run}]);
				if (more)
					rest.update([{data: run}]);
			}
		},
		close: () => { main.close(); rest.close(); }};
	return self;
};

// --- several jobs ---
const compare = ids => {
	let jobs, runs, differ;
	const drawn = picture([...MAIN, "learning_rate", "step_ms", "memory"]);
	const form = asked("Add job", "Add", other => { location.hash = "#/compare/" + [...ids, other]; });
	COLUMNS["Curve"] = j => [h("span", {class: "key j" + ids.indexOf(j.id)}), jobLink(j.id)];
	COLUMNS[""] = j => ids.length > 1 && link("compare/" + ids.filter(x => x !== j.id), "leave out", {"aria-label": "leave out job " + j.id});
	return {title: "Compare " + ids.join(", "),
		load: async () => {
			[jobs, runs] = await Promise.all([Promise.all(ids.map(async id => (await ask("GetJob", {job_id: id})).job)), curvesOf(ids)]);
			differ = differ || await Promise.all(ids.map(recipeOf)).then(recipes => differences(ids, recipes), e => wrong(e.message));
		},
		draw: () => {
			put(h("h1", {}, plural(ids.length, "job") + " in one picture"), jobTable("compared", ["Curve", "Name", "State", "Step", "Loss>", "Validation>", "Tokens/s>", "MFU>", "Workers>", ""], {jobs}),
				ids.length < MOST_COMPARED && form, section("Curves", drawn.nodes), section("Keys of the recipes that differ", differ));
			drawn.update(runs.map((data, i) => ({data, colour: "var(--j" + i + ")", label: "job " + ids[i]})));
		},
		close: drawn.close};
};

// --- a node ---
const node = name => {
	let n;
	return {title: "Node " + name,
		load: async () => {
			n = (await ask("ListNodes")).nodes.find(x => x.name === name);
			if (!n)
				throw failure(404, "There is no node " + name + ".");
		},
		draw: () => put(h("h1", {}, "Node " + name, " ", nodeState(n)), n.reason && h("p", {class: "under"}, h("b", {id: "reason"}, n.reason)),
			facts([["slots in use", n.slots_used, small("of ", n.slots)], ["device", n.device], ["address", n.address || "-"], ["version", n.version ? n.version.split(" ")[0] : "-"], ["last seen", ago(n.last_seen)],
				n.drain_deadline && ["drain's deadline", n.drain_deadline], n.window_from && ["maintenance", n.window_from + " to " + n.window_until],
				n.quarantined_until && ["quarantined until", n.quarantined_until]]),
			section("Slots", slotsOf(n)),
			section("Workers", table("workers", ["Job", "Workers>"], n.jobs.map(p => [p.job_id, [key(p.job_id), jobLink(p.job_id)], p.workers]), "No worker runs here.")),
			n.gpus.length > 0 && section("GPUs", table("gpus", ["Slot>", "Name", "State", "Memory>", "°C>", "ECC errors>", "XID>", "Job", "Reason"], n.gpus.map(g => [g.slot, g.slot, g.name, g.state,
				g.memory_total_bytes ? bytes(g.memory_used_bytes) + " of " + bytes(g.memory_total_bytes) : "-", g.celsius || "-", g.ecc ? g.ecc_errors : "-", g.xid || "-", g.job_id ? jobLink(g.job_id) : "-", g.reason]))),
			section("Events", feed(events.filter(e => e.node === name), "None among the newest.")))};
};

// --- places ---
const open = () => {
	const [, kind, rest = ""] = /^#\/?(\w*)\/?(.*)$/.exec(location.hash) || [], before = view && view.job;
	const ids = [...new Set(rest.split(",").map(Number))].filter(n => Number.isSafeInteger(n) && n > 0).slice(0, MOST_COMPARED);
	let name = rest;
	try {
		name = decodeURIComponent(rest);
	} catch {
		// It is a name with a lone %.
	}
	if (view && view.close)
		view.close();
	view = kind === "job" && ids.length ? job(ids[0]) : kind === "compare" && ids.length ? compare(ids) : kind === "node" && name ? node(name) : cluster();
	document.title = view.title + " · Titan";
	$("where").textContent = view.title;
	$("main").replaceChildren(none("Loading."));
	if (before !== view.job || !stream) {
		last = null;
		events = [];
		go();
	}
	wake();
};
addEventListener("hashchange", () => {
	if (locked)
		return;
	open();
	scrollTo(0, 0);
	$("main").focus({preventScroll: true});
});
document.addEventListener("visibilitychange", () => {
	if (document.hidden)
		return halt();
	go();
	wake();
});
addEventListener("online", go);
open();
