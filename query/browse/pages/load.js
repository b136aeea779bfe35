"use strict";
// Fetches the data, and then lets all other scripts run, which expect it to be there.

(async () => {
  const subtitle = document.getElementById("subtitle");
  const asked = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  try {
    const answer = await fetch(`data?base=${encodeURIComponent(asked.get("base") ?? "")}`);
    if (!answer.ok || answer.headers.get("Content-Type") !== "application/octet-stream") {
      subtitle.textContent = (await answer.json()).error;
      return;
    }
    globalThis.packedData = await answer.arrayBuffer();
  } catch {
    subtitle.textContent = "Nothing is served here any more: run query browse again.";
    return;
  }
  const script = document.createElement("script");
  script.src = "browse.js";
  document.body.append(script);
})();
