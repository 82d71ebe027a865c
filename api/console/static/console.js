// What pages gain with scripts: the reader's own time beside UTC, and "/" for the search box. They read well without.
"use strict";
(() => {
  const local = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "long" });
  const KEPT = "outbox-bridge-clock";
  const inUtc = new WeakMap();
  let isLocal = false;
  const tellTime = (one) => {
    const said = local.format(new Date(one.dateTime));
    if (!inUtc.has(one)) inUtc.set(one, [...one.childNodes].map((node) => node.cloneNode(true)));
    one.replaceChildren(...(isLocal ? [said] : inUtc.get(one).map((node) => node.cloneNode(true))));
    one.title = isLocal ? one.dateTime : said;
  };
  const tellTimes = (root) => root.querySelectorAll("time[datetime]").forEach(tellTime);
  const offerClock = (button) => {
    const show = () => {
      button.textContent = isLocal ? button.dataset.utc : button.dataset.local;
      tellTimes(document);
      document.dispatchEvent(new Event("clock"));
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      isLocal = !isLocal;
      localStorage.setItem(KEPT, isLocal ? "local" : "utc");
      show();
    });
    show();
  };
  const followChanges = () => {
    // parts that come anew, as on the first page; what was told here is no news
    const observer = new MutationObserver((changes) => {
      for (const change of changes) {
        if (change.target.closest("time")) continue;
        change.addedNodes.forEach((node) => node.nodeType === Node.ELEMENT_NODE && tellTimes(node));
      }
    });
    observer.observe(document.getElementById("content"), { childList: true, subtree: true });
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("find")?.focus();
    }
  });
  document.addEventListener("DOMContentLoaded", () => {
    isLocal = localStorage.getItem(KEPT) === "local";
    offerClock(document.getElementById("clock"));
    followChanges();
  });
})();
