enableTables(document);
loadFigures().then(() => (document.documentElement.dataset.drawn = "true")).catch(failed);
