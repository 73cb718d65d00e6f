"""How the page looks."""

STYLE = """
:root { --ink: #1a1a1a; --soft: #555; --rule: #ddd; --accent: #0b5a8c }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 60rem; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; color: var(--ink); background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 3rem 0 0.3rem; padding-top: 1rem; border-top: 2px solid var(--ink) }
h3 { font-size: 1.12rem; margin: 2.2rem 0 0.5rem }
h4 { font-size: 1rem; margin: 1.4rem 0 0.3rem }
a { color: var(--accent) }
p { margin: 0.5rem 0; max-width: 46rem } ul { margin: 0.5rem 0; padding-left: 1.2rem; max-width: 46rem }
.note { color: var(--soft); font-size: 0.9rem } .o { white-space: nowrap }
.verdict { border-left: 4px solid var(--accent); background: #eef5fa; padding: 0.6rem 0.9rem; margin: 0.7rem 0 }
.verdict p { margin: 0.25rem 0 }
nav { margin: 1.5rem 0; font-size: 0.95rem } nav ul { list-style: none; padding: 0; margin: 0.2rem 0; max-width: none }
nav > ul > li { margin: 0.35rem 0 } nav ul ul { display: flex; flex-wrap: wrap; gap: 0 1.1rem; padding-left: 1rem }
nav strong { font-size: 0.85rem; color: var(--soft); font-weight: 600 }
figure { margin: 1.6rem 0 2rem }
figure > svg { display: block; max-width: 100%; height: auto }
figure > svg.phone { display: none }
figure text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important }
.hit { fill: transparent; stroke: none; pointer-events: all } .hit:hover { stroke: #1a1a1a; stroke-width: 1.5 }
figcaption { color: var(--soft); font-size: 0.9rem; max-width: 46rem; margin-top: 0.3rem }
.title { font-weight: 600; margin: 0 0 0.5rem }
.box { overflow-x: auto; max-width: 100%; -webkit-overflow-scrolling: touch }
.box:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; overflow-wrap: normal;
  font-variant-numeric: tabular-nums }
th, td { padding: 0.28rem 0.6rem; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top }
th { vertical-align: bottom; border-bottom-color: #888; font-weight: 600 }
.n { text-align: right; white-space: nowrap }
th.n { white-space: normal }
td.t { max-width: 24rem; overflow-wrap: break-word }
th:first-child, td:first-child { padding-left: 0.4rem }
.mark { display: inline-block; width: 1.1em }
tr.best { background: #e5f3ec } tr.best td:first-child { font-weight: 600 }
tr.diverged, tr.failed { background: #fbeee6; color: #7a330d }
tr.simulated { background: #f2f2f7 } tr.simulated td:first-child { font-style: italic }
tr.published { background: #f6f3e6 } tr.published td:first-child { font-style: italic }
.key { color: var(--soft); font-size: 0.85rem; margin: 0.35rem 0 } .key span { margin-right: 1.1rem; white-space: nowrap }
details { margin: 0.5rem 0 1rem } summary { cursor: pointer; color: var(--accent); font-size: 0.88rem; padding: 0.2rem 0 }
details .box { max-height: 26rem; overflow-y: auto; margin-top: 0.3rem }
@media (max-width: 56rem) {
  h1 { font-size: 1.45rem } h2 { font-size: 1.2rem }
  th, td { padding: 0.25rem 0.4rem } td.t:first-child { min-width: 8rem; max-width: 11rem }
  td.t { max-width: 15rem } table { width: max-content }
  figure > svg.wide { display: none } figure > svg.phone { display: block; width: 100%; max-width: 30rem } }
@media print {
  body { font-size: 11pt; max-width: none; padding: 0 } nav { display: none } h2, h3, .title { break-after: avoid }
  figure, tr { break-inside: avoid } .box, details .box { overflow: visible; max-height: none }
  figure > svg.wide { display: block } figure > svg.phone { display: none }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""
