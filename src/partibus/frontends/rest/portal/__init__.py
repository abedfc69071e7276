"""The portal: HTML pages below ``/portal`` for who looks after a namespace (`docs/portal.md`).

`gate` is all that a broker has of it until the first page is asked for: the rest, and the library of templates, are
imported then, on another thread. `site` says which page is whose and who may see it; the modules of data (`overview`,
`entities`, `entity`) make what the templates in ``templates/`` show and what ``?format=json`` answers; `fields` and
`changes` are the forms. What is done is done by the same functions of `partibus.namespace` as through the admin API,
beside which the portal stands: they speak of the same entities, on the same port.
"""
