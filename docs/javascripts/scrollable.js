/* Tables, equations and code that scroll can be reached from the keyboard. */
document$.subscribe(() => {
  for (const element of document.querySelectorAll(".md-typeset__scrollwrap, .equation, .highlight pre, .highlight code, p:has(> img:only-child)"))
    element.tabIndex = 0;
});
