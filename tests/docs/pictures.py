#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run for the README, without a service or a library: a recording of a terminal, and the loss through a kill.

    pictures.py record FILE.cast -- COMMAND...     on a terminal of its own, 100 x 28; asciicast v2
    pictures.py terminal FILE.cast OUT.svg         what was recorded, as an animation
    pictures.py loss METRICS.jsonl EVENTS.jsonl OUT.svg
"""
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH, ROWS = 100, 28
SECONDS = 40.0  # the animation takes about as long
REAL = (2.0, 4.0)  # so many seconds before and after the kill pass as they did
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "36": "#a5d6ff", "1": "#ffffff", "2": "#8b949e"}
LINE, CHAR, LEFT, TOP = 17, 7.83, 14, 40


# --- recording -----------------------------------------------------------------------------------------------------------

def record(path, command):
    begin = time.monotonic()
    pid, fd = pty.fork()
    if pid == 0:
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, WIDTH, 0, 0))
    with open(path, "w", encoding="utf-8") as out:
        head = {"version": 2, "width": WIDTH, "height": ROWS, "command": " ".join(command), "load": os.getloadavg()[0], "cores": os.cpu_count()}
        out.write(json.dumps(head) + "\n")
        while True:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            text = data.decode(errors="replace")
            sys.stdout.write(text)
            sys.stdout.flush()
            out.write(json.dumps([round(time.monotonic() - begin, 3), "o", text], ensure_ascii=False) + "\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- a terminal, as far as our programs use one ------------------------------------------------------------------------------

def play(events):
    """[(time, {row: cells})] for each event: rows that changed, a cell is (character, colour); rows count from the first line on."""
    rows, row, column, colour, out = {0: []}, 0, 0, "", []
    for at, text in events:
        changed = set()
        for m in re.finditer(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]", text):
            c = m[0]
            if c == "\r":
                column = 0
            elif c == "\n":
                row += 1
                rows.setdefault(row, [])
                changed.add(row)
            elif c[0] == "\x1b":
                if m[2] == "K":
                    rows[row] = rows[row][:column]
                    changed.add(row)
                elif m[2] == "m":
                    colour = next((COLOURS[p] for p in reversed(m[1].split(";")) if p in COLOURS), "")
            else:
                if column >= WIDTH:
                    row, column = row + 1, 0
                    rows.setdefault(row, [])
                cells = rows[row]
                cells += [(" ", "")] * (column - len(cells))
                cells[column:column + 1] = [(c, colour)]
                column += 1
                changed.add(row)
        out.append((at, {r: list(rows[r]) for r in changed}))
    return out


def shown_time(kill, end):
    """A function from the time of the recording to that of the animation."""
    begin, stop = (max(0.0, kill - REAL[0]), min(end, kill + REAL[1])) if kill else (0.0, 0.0)
    rest = end - (stop - begin)
    factor = max(1.0, rest / max(1.0, SECONDS - (stop - begin)))

    def at(t):
        real = min(max(t - begin, 0.0), stop - begin)
        return real + (t - real) / factor
    return at, factor


def versions(frames, at, step=0.2):
    """[(row, cells, from, to)], to None: for good. A row that changes oftener than every step is shown as it was at the end of one."""
    live, out = {}, []
    for t, changed in frames:
        now = round(at(t) / step) * step
        for row, cells in changed.items():
            old = live.get(row)
            if old and old[1] < now and old[0] != cells:
                out.append((row, old[0], old[1], now))
                live[row] = (cells, now)
            else:
                live[row] = (cells, old[1] if old and old[0] == cells else now)
    out += [(row, cells, begin, None) for row, (cells, begin) in live.items()]
    return sorted((v for v in out if v[1]), key=lambda v: (v[2], v[0]))


def spans(cells):
    text, out = "".join(c for c, _ in cells).rstrip(), []
    begin = 0
    while begin < len(text):
        colour, end = cells[begin][1], begin
        while end < len(text) and cells[end][1] == colour:
            end += 1
        part = html.escape(text[begin:end])
        out.append(f'<tspan fill="{colour}">{part}</tspan>' if colour else part)
        begin = end
    return "".join(out)


def terminal(source, target):
    with open(source, encoding="utf-8") as f:
        head = json.loads(f.readline())
        events = [(t, text.replace(f"{ROOT}/", "")) for t, _, text in map(json.loads, f)]
    kill = next((t for t, text in events if "now killing" in text), None)
    at, factor = shown_time(kill, events[-1][0])
    shown = versions(play(events), at)
    end = at(events[-1][0]) + 6
    last = max(v[0] for v in shown)
    width, height = LEFT * 2 + WIDTH * CHAR, TOP + ROWS * LINE + 14
    # The newest row is the lowest one: the rows move up when one comes that does not fit.
    tops, top = [(0.0, 0)], 0
    for row, _, begin, _ in shown:
        if row - ROWS + 1 > top:
            top = row - ROWS + 1
            tops.append((begin, top))
    style = ["@keyframes up{" + "".join(f"{100 * t / end:.2f}%{{transform:translateY({-LINE * r}px)}}" for t, r in tops) + "}",
             f"#rows{{animation:up {end:.1f}s step-end infinite}}",
             ".t{animation-duration:%.1fs;animation-timing-function:step-end;animation-iteration-count:infinite}" % end]
    names, body = {}, []
    for row, cells, begin, until in shown:
        text = spans(cells)
        if not text:
            continue
        key = (f"{100 * begin / end:.2f}", f"{100 * until / end:.2f}" if until is not None else "")
        if key not in names:
            names[key] = f"v{len(names)}"
            gone = f"{key[1]}%{{visibility:hidden}}" if key[1] else ""
            style.append(f"@keyframes {names[key]}{{0%{{visibility:hidden}}{key[0]}%{{visibility:visible}}{gone}}}")
        hidden = "" if until is None else ' visibility="hidden"'
        body.append(f'<text class="t" style="animation-name:{names[key]}" y="{TOP + LINE * (row + 1) - 4}"{hidden}>{text}</text>')
    machine = f"; {head['cores']} cores, load {head['load']:.0f}" if "load" in head else ""
    speed = f"{factor:.0f} times as fast, but for {sum(REAL):.0f} s around the kill" if kill else f"{factor:.0f} times as fast"
    speed += machine
    with open(target, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">\n'
                f'<title>{html.escape(head["command"])}: recorded, {speed}</title>\n<style>\n'
                "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#c9d1d9;white-space:pre}\n"
                + "\n".join(style) + "\n@media (prefers-reduced-motion){#rows,.t{animation:none}}\n</style>\n"
                f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n<text x="{LEFT}" y="24" style="fill:#8b949e">'
                f'$ {html.escape(head["command"])}    ({speed})</text>\n'
                f'<svg x="{LEFT}" y="{TOP - 4}" width="{WIDTH * CHAR:.0f}" height="{ROWS * LINE + 6}" viewBox="0 {TOP - 4} {WIDTH * CHAR:.0f} {ROWS * LINE + 6}">\n'
                f'<g id="rows" transform="translate(0 {-LINE * max(0, last - ROWS + 1)})">\n' + "\n".join(body) + "\n</g>\n</svg>\n</svg>\n")


# --- the loss ------------------------------------------------------------------------------------------------------------

def loss(metrics, events, target):
    with open(metrics, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f if line.strip()]
    with open(events, encoding="utf-8") as f:
        said = [json.loads(line) for line in f if line.strip()]
    back = next(e for e in said if e["type"] == "recovery.finished")
    w, h, left, top = 860, 300, 46, 34
    first, last = lines[0]["step"], lines[-1]["step"]
    high, low = max(m["loss"] for m in lines), min(m["loss"] for m in lines)
    high, low = -(-high // 1), low // 1

    def x(step):
        return left + (w - left - 16) * (step - first) / (last - first)

    def y(value):
        return top + (h - top - 34) * (high - value) / (high - low)
    changes = [i for i in range(1, len(lines)) if lines[i]["epoch"] != lines[i - 1]["epoch"]]
    kill = lines[changes[0]]
    repeated = len(lines) - len({m["step"] for m in lines})
    title = (f"make demo: a worker is killed before step {kill['step']}; training again after {back['detail']['recovery_ms']} ms with "
             f"{kill['world_size']} workers; {repeated or 'no'} step{'s' * (repeated != 1)} made twice")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#fff"/>', f'<text x="{left}" y="20" font-size="13">{html.escape(title)}</text>']
    for value in range(int(low), int(high) + 1):
        out.append(f'<path d="M{left} {y(value):.1f}H{w - 16}" stroke="#ddd"/><text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for i in changes:
        out.append(f'<path d="M{x(lines[i]["step"]):.1f} {top}V{h - 34}" stroke="{"#d62728" if i == changes[0] else "#2ca02c"}" stroke-dasharray="4 3"/>')
    at = x(kill["step"])
    out.append(f'<text x="{at - 6:.1f}" y="{top + 12}" text-anchor="end" fill="#d62728">SIGKILL: {lines[changes[0] - 1]["world_size"]} → {kill["world_size"]} workers</text>')
    if len(changes) > 1:
        grown = lines[changes[1]]
        out.append(f'<text x="{x(grown["step"]) + 6:.1f}" y="{top + 12}" fill="#2ca02c">{grown["world_size"]} again at step {grown["step"]}</text>')
    points = " ".join(f"{x(m['step']):.1f},{y(m['loss']):.1f}" for m in lines)
    out += [f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.4"/>',
            *(f'<text x="{x(s):.1f}" y="{h - 16}" text-anchor="middle">{s}</text>' for s in range(0, last + 1, 100) if s >= first),
            f'<text x="{left}" y="{h - 2}" font-size="11" fill="#555">step; the curve is the loss in nats per byte</text>', "</svg>"]
    with open(target, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def main():
    args = sys.argv[1:]
    if args[:1] == ["record"] and len(args) > 3 and args[2] == "--":
        sys.exit(record(args[1], args[3:]))
    elif args[:1] == ["terminal"] and len(args) == 3:
        terminal(*args[1:])
    elif args[:1] == ["loss"] and len(args) == 4:
        loss(*args[1:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
