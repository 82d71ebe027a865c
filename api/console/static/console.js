// What pages gain with scripts: the reader's own time beside UTC, and "/" for the search box. They read well without.
"use strict";
(() => {
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const tellLocal = (root) => {
    for (const one of root.querySelectorAll("time[datetime]:not([title])")) one.title = local.format(new Date(one.dateTime));
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("find")?.focus();
    }
  });
  document.addEventListener("DOMContentLoaded", () => tellLocal(document));
})();
