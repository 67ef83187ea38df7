// What each product costs, looked up at the same time:
// clawmode run examples/report.js --tools examples.shop:TOOLS
const products = await tools.list_products();
const prices = await Promise.all(products.map((product) => tools.get_price({ product })));
return Object.fromEntries(products.map((product, at) => [product, prices[at]]));
