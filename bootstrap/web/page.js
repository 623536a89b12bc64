"use strict";
// Asks for this page again every few seconds while somebody looks, and exchanges the parts that have changed.
(() => {
  const live = document.getElementById("live");
  const before = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.id, part.innerHTML]));

  function exchange(fresh) {
    for (const part of fresh.querySelectorAll("[data-live]")) {
      const shown = document.getElementById(part.id);
      const html = part.innerHTML;
      // not under the hands of who uses the keyboard there, or has marked text
      const isUsed = shown && (shown.contains(document.activeElement) ||
        (!getSelection().isCollapsed && shown.contains(getSelection().anchorNode)));
      if (!shown || isUsed || before.get(part.id) === html) continue;
      before.set(part.id, html);
      const open = [...shown.querySelectorAll("details[open][id]")].map((one) => one.id);
      const scrolled = [...shown.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      shown.className = part.className;
      shown.replaceChildren(...part.childNodes);
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      shown.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
    }
    document.title = fresh.title;
    readyButtons();
  }

  let pause = 4000;
  async function look() {
    if (!document.hidden) {
      try {
        const answer = await fetch("/", { cache: "no-cache", signal: AbortSignal.timeout(10000) });
        if (!answer.ok) throw new Error(answer.status);
        exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
        pause = 4000;
        live.textContent = "Live: looked at " + new Date().toLocaleTimeString();
      } catch {
        pause = Math.min(2 * pause, 60000);
        live.textContent = "Not live now: the node does not answer. Trying again.";
      }
    }
    setTimeout(look, pause * (0.75 + Math.random() / 2));
  }

  async function copy(button) {
    const text = document.getElementById(button.dataset.copies).textContent.trim();
    let isDone = false;
    try {
      await navigator.clipboard.writeText(text);
      isDone = true;
    } catch {  // browsers have that for https alone
      getSelection().selectAllChildren(document.getElementById(button.dataset.copies));
      isDone = document.execCommand("copy");
      if (isDone) getSelection().removeAllRanges();
    }
    button.textContent = isDone ? "Copied" : "Marked: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; button.blur(); }, 2000);
  }

  function readyButtons() {
    for (const button of document.querySelectorAll("button[data-copies]")) {
      button.hidden = false;
      button.onclick = () => copy(button);
    }
  }

  readyButtons();
  live.textContent = "Live";
  setTimeout(look, pause);
})();
