// SPDX-License-Identifier: Apache-2.0
// report.js - draws the curves of a page that `titanctl report` writes, from the JSON beside it, by chart.js before it.
showCharts(document.getElementById("charts"), document.getElementById("controls")).update(
    [{data: JSON.parse(document.getElementById("data").textContent)}]);
