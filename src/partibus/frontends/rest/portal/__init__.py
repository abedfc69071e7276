"""The portal: HTML pages below ``/portal`` for the manager of a namespace (`docs/portal.md`).

A broker has only `gate` until the first page is requested: the rest, and the library of templates, are imported then,
on another thread. `site` dispatches and authorizes pages. The modules of data (`overview`, `entity`) make the
values for the templates in ``templates/`` and for ``?format=json``; `fields` and `changes` are the forms. Changes
use the same functions of `partibus.namespace` as the admin API, on the same entities and the same port.
"""

PATH = "/portal"
