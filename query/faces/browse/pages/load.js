"use strict";
// Fetches the data, then loads all other scripts, which need it.

(async () => {
  const subtitle = document.getElementById("subtitle");
  const parameters = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B"));
  try {
    const answer = await fetch(`data?base=${encodeURIComponent(parameters.get("base") ?? "")}`);
    const data = await answer.json();
    if (data.error) {
      subtitle.textContent = data.error;
      return;
    }
    globalThis.pageData = data;
  } catch {
    subtitle.textContent = "The page is no longer served: run query browse again.";
    return;
  }
  const script = document.createElement("script");
  script.src = "browse.js";
  document.body.append(script);
})();
