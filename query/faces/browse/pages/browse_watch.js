// The title, the choice of base, and updates: the layout is ready, or a new generation was published.

const baseShown = data.bases.find(([base]) => base === data.base)?.[1] ?? "";
const WATCHED = 15000; // milliseconds between requests
const MAKING = 1500; // the same while the layout is computed
const UNMADE = {
  working: "Placing the models. The table and the filters work already.",
  failed: `There is no map. ${data.why}`,
};

part("title").textContent = `${numberText(count)} ${count === 1 ? "fine-tune" : "fine-tunes"} of ${baseShown}`;
showTitle();
const isFirst = data.places === "working" && mixed.length > 0; // the first map, until the layout is computed
part("subtitle").textContent = data.subtitle ? `Map: ${data.subtitle}.${isFirst ? " A map that keeps neighbours together is being made …" : ""}` : "";
part("unplaced").hidden = data.places === "ready" || isFirst;
part("unplaced").textContent = UNMADE[data.places] ?? "";

part("base").append(...data.bases.map(([base, text]) => element("option", { value: base, selected: base === data.base }, text)));
for (const node of [part("base"), document.querySelector("label[for=base]")]) node.hidden = data.bases.length < 2;
part("base").addEventListener("change", loadAgain);
addEventListener("hashchange", () => {
  const wanted = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("base") ?? data.base;
  if (wanted === data.base || !data.bases.some(([base]) => base === wanted)) return;
  part("base").value = wanted;
  location.reload();
});
if (data.bases.length > 1) furtherAddress.push(["base", data.base]);
furtherWords.push({ write: () => (data.bases.length > 1 ? [["base", part("base").value]] : []), read: () => {} });

function notice(text, button, act) {
  part("notice").hidden = false;
  part("notice").querySelector("span").textContent = text;
  part("notice").querySelector("button").textContent = button;
  part("notice").querySelector("button").onclick = act;
}

// The view is in the address, so a reloaded page looks the same.
function loadAgain() {
  writeView();
  location.reload();
}

async function look() {
  let answer;
  try {
    answer = await (await fetch(`state?base=${encodeURIComponent(data.base)}`)).json();
  } catch {
    notice("Nothing is served here any more: run query browse again.", "Try again", look);
    return;
  }
  if (answer.isOvertaken || answer.generation !== data.generation) {
    notice("The atlas was published again since this page was made.", "Show the new one", loadAgain);
  } else if (data.places === "working" && answer.places !== "working") {
    // Whoever looks at something, types or has moved the first map is not interrupted.
    const isBusy = overlay || state.selected !== NONE || (isFirst && view.scale !== view.whole);
    if (isBusy || document.activeElement?.matches("input, textarea")) notice(isFirst ? "The map that keeps neighbours together is made." : "The map is made.", "Show it", loadAgain);
    else return loadAgain();
  } else part("notice").hidden = true;
  setTimeout(look, answer.places === "working" ? MAKING : WATCHED);
}

setTimeout(look, MAKING);
addEventListener("focus", look);
