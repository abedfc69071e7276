// The faults of the page on the screen, a sentence each. The screen has the whole height of the page.
(() => {
  const faults = [], slack = 1.5, least = 4.5;
  const words = text => JSON.stringify(text.length > 50 ? text.slice(0, 50) + "…" : text);
  const visible = one => one.checkVisibility({visibilityProperty: true});

  // Nothing is wider than the screen or than its box, also in boxes that could be scrolled.
  if (document.documentElement.scrollWidth > innerWidth)
    faults.push(`the page is ${document.documentElement.scrollWidth} wide on a screen of ${innerWidth}`);
  for (const one of document.body.querySelectorAll("*:not(svg *)"))
    if (visible(one) && getComputedStyle(one).display != "inline" && one.scrollWidth > one.clientWidth + 1 && one.clientWidth)
      faults.push(`${one.tagName} ${words(one.textContent)} needs ${one.scrollWidth} and has ${one.clientWidth}`);

  // A cell of a narrow screen is its head and one value.
  for (const cell of document.querySelectorAll("td"))
    if (getComputedStyle(cell).display == "flex" && cell.childNodes.length > 1)
      faults.push(`the cell ${words(cell.textContent)} has ${cell.childNodes.length} parts`);

  // The lines of text, with their boxes.
  const lines = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const text = node.data.trim(), parent = node.parentElement;
    if (!text || ["STYLE", "SCRIPT", "title"].includes(parent.tagName) || !visible(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (box.width > 0 && box.height > 0) lines.push({text, parent, box});
    // A number and its unit are on one line.
    if (!parent.closest("svg, pre"))
      for (const {0: found, index} of node.data.matchAll(/\d[\d,.]* (%|µs|ms|s|min|h|d|[kMGT]?B)(?!\w)/g)) {
        range.setStart(node, index), range.setEnd(node, index + found.length);
        const tops = [...range.getClientRects()].map(box => box.top);
        if (Math.max(...tops) - Math.min(...tops) > slack) faults.push(`${words(found)} is on two lines`);
      }
  }
  for (const {text, parent, box} of lines) {
    // A line stays within the boxes around it.
    for (let outer = parent; outer && outer != document.documentElement; outer = outer.parentElement) {
      if (getComputedStyle(outer).display == "inline" || (outer.ownerSVGElement && outer.tagName != "svg")) continue;
      const around = outer.getBoundingClientRect();
      if (box.left < around.left - slack || box.right > around.right + slack ||
          box.top < around.top - 3 || box.bottom > around.bottom + 3) {
        faults.push(`text ${words(text)} leaves its ${outer.tagName}`);
        break;
      }
    }
    // It is large enough: a plot shrinks with the screen.
    const size = parent.ownerSVGElement
      ? parseFloat(getComputedStyle(parent).fontSize) * Math.sqrt(Math.abs(parent.getScreenCTM().a * parent.getScreenCTM().d - parent.getScreenCTM().b * parent.getScreenCTM().c))
      : parseFloat(getComputedStyle(parent).fontSize);
    if (size < 8) faults.push(`text ${words(text)} is ${size.toFixed(1)} pixels high`);
    // It stands out from what is behind it.
    const style = getComputedStyle(parent);
    const front = colour(parent.ownerSVGElement ? style.fill : style.color), back = behind(parent, box);
    if (back && contrast(front, back) < least)
      faults.push(`text ${words(text)} has a contrast of ${contrast(front, back).toFixed(1)}: ${front} on ${back}`);
  }
  // No line covers another one. Sorted by their upper edges, only near ones are compared.
  lines.sort((a, b) => a.box.top - b.box.top);
  lines.forEach((one, place) => {
    for (let next = place + 1; next < lines.length && lines[next].box.top < one.box.bottom - 2; next++) {
      const [a, b] = [one.box, lines[next].box];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack && Math.min(a.bottom, b.bottom) - b.top > 3)
        faults.push(`text ${words(one.text)} and ${words(lines[next].text)} cover each other`);
    }
  });
  return [...new Set(faults)];

  function colour(text) {
    return (text.match(/[\d.]+/g) || []).map(Number);
  }
  function behind(parent, box) {
    for (const one of document.elementsFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2)) {
      if (one.tagName == "image") return null;  // its pixels are not known
      const style = getComputedStyle(one);
      const found = one.ownerSVGElement ? (one.tagName == "text" || style.fill == "none" ? [] : colour(style.fill)) : colour(style.backgroundColor);
      if (found.length == 3 || found[3] > 0.5) return found;
    }
    return colour(getComputedStyle(document.body).backgroundColor);
  }
  function contrast(one, other) {
    const [high, low] = [one, other].map(([r, g, b]) => {
      const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    }).sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }
})()
