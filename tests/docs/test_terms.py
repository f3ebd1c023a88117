#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No word that was given up for the field's term is back (terms.py), and terms.py would find one."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import terms  # noqa: E402
from titan import tap  # noqa: E402

BACK = ["struct seat *s;", "uint32_t n_leavers;", "job_set_wish(db);", "w->blame = 1;", "median_pace(c);", "fence_stranger(c);", "b.imposters++;",
        "source_sealed(c);", "uint64_t unsealed;", "m->told = true;", "int rung;", "delegate_lease_ms = 1;", "bool above_delegates;", "on_hello(link);",
        "send_welcome(c);", "core_beat(c);", "int ward;", "say_job_move(c);", "session_tell(s);", "rpc_front_advance(f);", "struct channel_link *l;",
        "k->next_turn++;", "/* the ladder */", "/* a leaver's part */", "/* before the world is told */", "// who beats", "struct meeting *m;", "/* the tag of a meeting */", "/* for each kind of rank */", "/* an epoch to count by */", "/* Delegates decide. */"]
IN_WORKER = [("elastic/holdings.h", "struct parts {"), ("elastic/verify.c", "part_hash(s);"), ("checkpoint/manifest.h", "struct piece box;"), ("tensor/layout.h", "layout_pieces(l);"),
             ("plan/build.h", "int program_kinds(void);"), ("plan/plan.h", "int kinds;"), ("plan/forecast.c", '"3 kinds of rank"'), ("exec/exec.h", "exec_report(e);"),
             ("train.c", "const double *report;"), ("plan/recompute.c", "again_find(g, id);"), ("model/block.h", "bool apart;"), ("optim/outcome.h", "double load_most;"),
             ("model/block.h", "double expert_room;"), ("plan/build.c", "plan_uses(b, err);"),
             ("elastic/membership.h", "enum { ORDER_STOP = 2 };"), ("train.c", "e->step.outcome.orders;"), ("elastic/member.c", '"an order to form"'), ("main.c", "membership_link_open(o);")]
IN_STRINGS = ['log("does not answer beats");', 'text = "a stranger";', '"the ladder: memory, replica"']
IN_DOCUMENTS = ["Workers' meetings are proved.", "# What the world is told", "a\n\n- keys keep strangers out", "<!-- x: begin -->\n<!-- x: end -->\na beat"]
DOCUMENTS_FINE = ["`rung` of `state.ready`", "```\n{\"leavers\": 1}\n```", "<!-- x: begin -->\na beat every 37 ms\n<!-- x: end -->", "Users are told apart."]
FINE = ["bool shares;", "double space;", "forward(x);", "towards(y);", '"leavers"', '"told before"', "heartbeat_ms = 1;", "/* it is told to stop */",
        "/* a delegated subtree, Delegate=yes */", "rewards(r);", "int placeholders;", "c->agents_imposter++;"]


def words_that_come_back_are_found():
    """a word of the table is found in identifiers, comments, strings and documents, and at its line"""
    missed = [text for text in BACK + IN_STRINGS if not list(terms.found("daemon/x.c", text))]
    missed += [text for text in IN_DOCUMENTS if not list(terms.found("docs/x.md", text))]
    missed += [(path, text) for path, text in IN_WORKER if not list(terms.found("worker/" + path, text))]
    assert not missed, f"not found: {missed}"
    assert [line for _, _, line, _ in terms.found("docs/x.md", IN_DOCUMENTS[2])] == [3]
    assert {"README.md", "docs/membership.md"} <= set(terms.sources()), "documents are not looked at"


def others_pass():
    """public names, names in backticks, printed results and other words pass"""
    wrong = [text for text in FINE if list(terms.found("daemon/x.c", text))]
    wrong += [text for text in DOCUMENTS_FINE if list(terms.found("docs/x.md", text))]
    wrong += [text for text in ("struct part *p;", "piece_of(text);", "to_report(e);", "again = true;", "by_order(x);", "/* in the order of the ranks */") if list(terms.found("worker/tokenizer/x.c", text))]
    wrong += list(terms.found("state/x.c", '"SELECT leavers, rung FROM epochs"'))
    assert not wrong, f"taken for a word of the table: {wrong}"


def none_is_back():
    """none of the words is back in the tree"""
    wrong = terms.check(terms.sources())
    assert not wrong, "\n" + "\n".join(wrong)


tap(words_that_come_back_are_found, others_pass, none_is_back)
