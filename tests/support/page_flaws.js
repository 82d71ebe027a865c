// What is wrong with how the open page looks, as sentences; nothing wrong: an empty list.
(() => {
  const flaws = [];
  const width = document.documentElement.clientWidth;
  const tell = (element) => `<${element.tagName.toLowerCase()}> "${element.textContent.trim().slice(0, 40)}"`;
  const scrolls = (element) => /auto|scroll|hidden/.test(getComputedStyle(element).overflowX);
  const ancestors = function* (node) {
    for (let one = node.parentElement; one; one = one.parentElement) yield one;
  };

  // sideways: only boxes of their own may be wider than the screen
  if (document.documentElement.scrollWidth > width) flaws.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.body.querySelectorAll("*:not(svg *)")) {
    const box = element.getBoundingClientRect();
    if ([...ancestors(element)].some((one) => one !== document.body && scrolls(one))) continue;
    if (box.width && (box.left < -0.5 || box.right > width + 0.5)) flaws.push(`${tell(element)} sticks out`);
    if (!scrolls(element) && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display === "block")
      flaws.push(`${tell(element)} is wider than its place`);
  }

  // texts upon one another: what is seen of each line of text, from top to bottom
  const lines = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    if (!text.data.trim() || ["TITLE", "DESC", "STYLE"].includes(text.parentElement.tagName.toUpperCase())) continue;
    const clips = [...ancestors(text)].filter((one) => one !== document.body && one !== document.documentElement && scrolls(one));
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const rect of range.getClientRects()) {
      const seen = { left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom, of: text };
      for (const clip of clips.map((one) => one.getBoundingClientRect())) {
        seen.left = Math.max(seen.left, clip.left), seen.right = Math.min(seen.right, clip.right);
        seen.top = Math.max(seen.top, clip.top), seen.bottom = Math.min(seen.bottom, clip.bottom);
      }
      // a turned label is judged by the middle of its box, which is all that its letters cover for sure
      const turned = text.parentElement.closest("svg text[transform*='rotate(-']");
      if (turned && !/rotate\(-0\)/.test(turned.getAttribute("transform"))) continue;
      if (seen.right - seen.left > 1 && seen.bottom - seen.top > 1) lines.push(seen);
    }
  }
  if (!lines.length) flaws.push("no text is seen");
  lines.sort((a, b) => a.top - b.top);
  lines.forEach((line, index) => {
    for (let next = index + 1; next < lines.length && lines[next].top < line.bottom - 3; next += 1) {
      const other = lines[next];
      const wide = Math.min(line.right, other.right) - Math.max(line.left, other.left);
      const high = Math.min(line.bottom, other.bottom) - Math.max(line.top, other.top);
      const isSticky = [line, other].some((one) => one.of.parentElement.closest("thead"));
      if (wide > 2 && high > 3 && !isSticky) flaws.push(`"${line.of.data.trim().slice(0, 30)}" lies upon "${other.of.data.trim().slice(0, 30)}"`);
    }
  });

  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect();
    for (const line of lines)
      if (!svg.contains(line.of) && line.left < box.right && line.right > box.left && line.top < box.bottom - 2 && line.bottom > box.top + 2)
        flaws.push(`a plot lies upon "${line.of.data.trim().slice(0, 30)}"`);
  }

  // colours: text against what is behind it, by WCAG 2 AA
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    paint.clearRect(0, 0, 1, 1), (paint.fillStyle = colour), paint.fillRect(0, 0, 1, 1);
    return paint.getImageData(0, 0, 1, 1).data;
  };
  const light = (colour) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, share, index) => {
      const part = rgba(colour)[index] / 255;
      return sum + share * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    }, 0);
  const judged = new Map();
  for (const { of } of lines) {
    const parent = of.parentElement;
    const ink = parent.closest("svg") ? getComputedStyle(parent).fill : getComputedStyle(parent).color;
    const behind = [parent, ...ancestors(parent)].map((one) => getComputedStyle(one).backgroundColor).find((one) => rgba(one)[3] > 0);
    const name = `${ink} on ${behind || "nothing"}`;
    if (judged.has(name)) continue;
    const [low, high] = [light(ink), light(behind || "white")].sort((a, b) => a - b);
    judged.set(name, (high + 0.05) / (low + 0.05));
    if (!behind || judged.get(name) < 4.5) flaws.push(`${tell(parent)}: ${name} has a contrast of ${judged.get(name).toFixed(2)}`);
  }

  // nothing empty, everything named
  for (const section of document.querySelectorAll("section")) {
    const [heading, ...rest] = section.children;
    if (!/^H[1-6]$/.test(heading.tagName) || !rest.some((one) => one.getBoundingClientRect().height > 8 && one.textContent.trim()))
      flaws.push(`section ${section.id} is empty`);
  }
  for (const cell of document.querySelectorAll("th, td, h1, h2, h3, p, li, dt, dd, caption, figcaption, pre"))
    if (!cell.textContent.trim()) flaws.push(`an empty <${cell.tagName.toLowerCase()}> in ${tell(cell.parentElement)}`);
  for (const table of document.querySelectorAll("table"))
    if (!table.tBodies[0]?.rows.length || !table.caption) flaws.push(`${tell(table)} has no row or no caption`);
  for (const header of document.querySelectorAll("th")) if (!header.scope) flaws.push(`${tell(header)} has no scope`);
  for (const svg of document.querySelectorAll("svg"))
    if (svg.getAttribute("role") !== "img" || !svg.querySelector("title, desc")) flaws.push("a plot without words");
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => Number(one.tagName[1]));
  levels.forEach((level, index) => {
    if (level > (index ? levels[index - 1] + 1 : 1)) flaws.push(`heading ${index} of level ${level} skips one`);
  });
  if (levels.filter((level) => level === 1).length !== 1) flaws.push("not one first heading");
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) flaws.push("an id is there twice");
  for (const link of document.querySelectorAll("a"))
    if (!document.getElementById(link.hash.slice(1))) flaws.push(`${tell(link)} leads nowhere`);

  // texts from elsewhere are texts
  const odd = document.querySelectorAll("script, img, iframe, object, embed, form, input, link, [onerror], [onclick]");
  for (const one of odd) flaws.push(`there is a <${one.tagName.toLowerCase()}>`);
  return [...new Set(flaws)].slice(0, 30);
})()
