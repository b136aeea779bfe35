// The columns as the server packs them (query/browse/packed.py), in the shape of the map's data.

globalThis.pageData = (() => {
  const buffer = globalThis.packedData;
  delete globalThis.packedData;
  const length = new DataView(buffer).getUint32(0, true);
  const start = Math.ceil((4 + length) / 8) * 8;
  const kinds = { Int32Array, Uint32Array, Float32Array, Float64Array };
  const told = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const array = ({ $array: [kind, place, many] }) => new kinds[kind](buffer, start + place, many);
  const orNull = (values) => Array.from(values, (value) => (Number.isNaN(value) ? null : value));

  for (const name of ["ids", "onHub", "x", "y", "nearStarts", "near", "similarities", "shares"]) told[name] = array(told[name]);
  for (const facet of told.facets) {
    const codes = array(facet.codes);
    const starts = facet.many ? array(facet.starts) : null;
    facet.codes = starts ? told.models.map((_, i) => Array.from(codes.subarray(starts[i], starts[i + 1]))) : codes;
  }
  for (const number of told.numbers) number.values = orNull(array(number.values));
  for (const coloring of told.colorings) {
    if (coloring.kind === "groups") coloring.codes = array(coloring.codes);
    else {
      const { kind, low, high, values } = told.numbers.find(({ name }) => name === coloring.column);
      Object.assign(coloring, { kind, low, high, values });
    }
  }
  told.backgrounds = told.shares.some((share) => !Number.isNaN(share));
  told.neighboursOf = (i) => {
    const found = [];
    for (let place = told.nearStarts[i]; place < told.nearStarts[i + 1]; place++) {
      const share = told.shares[place];
      found.push([told.near[place], told.similarities[place], Number.isNaN(share) ? null : share]);
    }
    return found;
  };
  return told;
})();
