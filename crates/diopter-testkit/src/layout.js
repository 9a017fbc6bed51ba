// Returns the faults of a page's layout: text that its chart cuts off, texts of one chart that
// overlap, and elements that are wider than the window. Runs in the page.
(() => {
  const faults = [];
  const isShown = (node) => node.getClientRects().length > 0 && node.textContent.trim() !== "";
  const short = (node) => `"${node.textContent.trim().slice(0, 40)}"`;
  for (const svg of document.querySelectorAll(".plot svg")) {
    // Samples of a legend and nested marks have no text of their own.
    const texts = [...svg.querySelectorAll("text")].filter(isShown)
      .map((node) => ({ node, box: node.getBoundingClientRect() })).filter(({ box }) => box.width > 0);
    const frame = svg.closest(".plot").getBoundingClientRect();
    const chart = svg.closest("figure[id]").id;
    for (const { node, box } of texts) {
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.top < frame.top - 0.5 || box.bottom > frame.bottom + 0.5) {
        faults.push(`${chart}: ${short(node)} is cut off`);
      }
    }
    for (let at = 0; at < texts.length; at += 1) {
      for (let other = at + 1; other < texts.length; other += 1) {
        const [one, two] = [texts[at].box, texts[other].box];
        const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        // The box of a text has space above and below its letters.
        if (wide > 1 && high > 4) faults.push(`${chart}: ${short(texts[at].node)} and ${short(texts[other].node)} overlap`);
      }
    }
  }
  const room = document.documentElement.clientWidth;
  for (const node of document.querySelectorAll("h1, h2, h3, p, li, button, select, fieldset, figure, .card, .notice")) {
    if (node.closest(".scroll, nav.toc") || !isShown(node)) continue;
    if (node.getBoundingClientRect().right > room + 0.5) faults.push(`${node.tagName} ${short(node)} is wider than the window`);
    if (node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline") faults.push(`${node.tagName} ${short(node)} is wider than its place`);
  }
  return faults.slice(0, 20);
})()
